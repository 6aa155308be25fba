//! `waystation run`: the agent itself.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;

use super::exit::ExitCode;
use super::service::Service;
use super::signals::Signals;
use crate::admin::{self, AdminOptions, OrdersSource};
use crate::clock::SystemClock;
use crate::config::{self, Loaded};
use crate::error_chain::Chain;
use crate::journal::{LaneTotals, Snapshot};
use crate::limits::{
    ASYNC_THREADS_MAX, BLOCKING_THREADS_MAX, SALVAGES_A_RUN_MAX, START_ROOM_LOOK_MS,
};
use crate::settings::Problems;
use crate::supervisor::status::Status;
use crate::supervisor::{
    Handle, LoadConfig, ReloadError, RunEnd, StartError, StartOptions, Supervisor,
};
use crate::tasks::Shutdown;
use crate::units::{human_duration, parse_duration};

/// Run the agent.
///
/// Reads the config, opens the journal in the data directory and works until it gets SIGTERM or SIGINT. A record that was
/// accepted is never lost: whatever is not delivered when the agent stops is delivered after the next start. Where a damaged
/// journal cannot be salvaged because its volume is full, the agent says how much to free and starts when that is done.
///
/// A config or a plugin that changes on disk is taken up while the agent runs, after SIGHUP and `waystation reload` also when
/// nothing has changed; one that cannot be used changes nothing. A start with a broken config runs the last one that a run has
/// adopted, and says so.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The config file
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = config::PATH_DEFAULT)]
    pub config: PathBuf,
    /// Read finite sources to their end, deliver everything, and exit
    #[arg(long)]
    pub once: bool,
    /// Exit with 78 when the config cannot be used, instead of running the last one that a run has adopted; --once implies it
    #[arg(long)]
    pub strict: bool,
    /// With --once: exit with 1 when something is still queued this long after the last source has ended, or when a source
    /// has failed for this long, e.g. "5m"
    #[arg(long, value_name = "DURATION", requires = "once", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// With --once: print what was done as one line of JSON on standard output, the last one
    #[arg(long, requires = "once")]
    pub json: bool,
}

/// Runs the command; gives the exit code.
///
/// # Errors
/// When the agent cannot start.
pub fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let file = args.config.clone();
    let load = move || config::load(&file, &config::process_environment, &super::inspect_plugin);
    let (loaded, fallback) = match load() {
        Ok(loaded) => (loaded, None),
        Err(problems) => {
            super::check::print_problems(&problems, false)?;
            match last_adopted(args) {
                Some(loaded) => (loaded, Some(first_line(&problems))),
                None => return Ok(ExitCode::Config),
            }
        }
    };
    let logging = crate::telemetry::init(&loaded.config.log);
    super::check::print_problems(&loaded.warnings, false)?;
    if let Some(error) = &fallback {
        tracing::error!(
            config = %args.config.display(), error,
            "The config cannot be used, the last one that a run has adopted runs in its place"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism()?.get().min(ASYNC_THREADS_MAX))
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let signals = {
        let _entered = runtime.enter();
        Signals::new().context("cannot take over signals")?
    };
    let code = runtime.block_on(async {
        let shutdown = Shutdown::new();
        let current = Current::default();
        let service = Service::of_environment();
        let reload = || current.get().iter().for_each(Handle::reload_soon);
        let look = || drop(current.get().map(|agent| agent.status()));
        let options = StartOptions {
            loaded,
            fallback,
            load: LoadConfig(Arc::new(load)),
            logging: Some(logging),
            once: args.once,
            compiler: std::env::current_exe().context("cannot find the agent's own program")?,
            clock: Arc::new(SystemClock),
        };
        tokio::select! {
            () = signals.watch(shutdown.clone(), reload) => {
                tracing::warn!("Second signal, ending at once; what is not delivered stays queued");
                Ok(ExitCode::Failed)
            }
            code = work(args, options, &shutdown, &current, &service) => code,
            never = service.watch(&shutdown, look) => match never {},
        }
    });
    // A blocking call that hangs, on a disk say, must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

/// The agent that runs now: another one after each salvage, none before the first has started.
#[derive(Clone, Default)]
struct Current(Arc<Mutex<Option<Handle>>>);

impl Current {
    fn get(&self) -> Option<Handle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, handle: Handle) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
    }
}

/// What the last run has adopted of a config that cannot be used now, unless that is not wanted.
fn last_adopted(args: &RunArgs) -> Option<Loaded> {
    if args.strict || args.once {
        return None;
    }
    let copy = config::adopted::find(&args.config, &config::process_environment)?;
    match copy.load(&config::process_environment, &super::inspect_plugin) {
        Ok(loaded) => Some(loaded),
        Err(problems) => {
            // Those of the file were printed; that there is no way around them is worth its own words.
            let _closed = super::check::print_problems(&problems, false);
            None
        }
    }
}

/// The first of these problems on one line, with its place.
fn first_line(problems: &Problems) -> String {
    ReloadError::Config(Box::new(problems.clone())).to_string()
}

async fn work(
    args: &RunArgs,
    options: StartOptions,
    shutdown: &Shutdown,
    current: &Current,
    service: &Service,
) -> anyhow::Result<ExitCode> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %args.config.display(), "Agent starts");
    let clock = Arc::clone(&options.clock);
    let begun = clock.monotonic();
    let admin_config = &options.loaded.config.admin;
    let admin_options =
        AdminOptions { socket: admin_config.socket.clone(), listen: admin_config.listen };
    let supervisor = match start(&options, shutdown, service).await {
        Ok(Some(supervisor)) => supervisor,
        Ok(None) => return Ok(ExitCode::Done),
        Err(error) => return start_failed(error),
    };
    let before = supervisor.handle().before();
    current.set(supervisor.handle());
    let admin_shutdown = Shutdown::new();
    let mut admin = serve_admin(admin_options, supervisor.handle(), current, &admin_shutdown)?;
    if let Some(error) = admin.take_socket_error() {
        tracing::warn!(error = %Chain(&error), "Admin socket cannot be bound, status has to do without");
    }
    service.ready();
    let running = run_over_salvages(supervisor, options, args.timeout, shutdown, current, service);
    let end = match running.await {
        Ok(end) => end,
        Err(error) => return start_failed(error),
    };
    admin_shutdown.request();
    admin.close();
    let done = summary(&before, &end.status, clock.monotonic().since(begun), &end.undone);
    tracing::info!(
        uptime = %human_duration(end.status.uptime), records_in = %done["records_in"],
        delivered = %done["delivered"], dropped = %done["dropped"],
        dead_lettered = %done["dead_lettered"], "Agent stopped"
    );
    for line in &end.undone {
        tracing::error!(what = line, "Left undone");
    }
    if args.json {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{done}")?;
    }
    Ok(match end {
        RunEnd { damage: Some(_), .. } => ExitCode::Journal,
        RunEnd { undone, .. } if undone.is_empty() => ExitCode::Done,
        _ => ExitCode::Failed,
    })
}

/// Starts the agent. Where the volume has no room for what a start writes, that is said once, and the agent starts when there
/// is; `None` when it is stopped before.
async fn start(
    options: &StartOptions,
    shutdown: &Shutdown,
    service: &Service,
) -> Result<Option<Supervisor>, StartError> {
    let mut is_told = false;
    loop {
        let error = match Supervisor::start(options.clone()).await {
            Ok(supervisor) => return Ok(Some(supervisor)),
            Err(StartError::Journal(error)) if error.is_full() && !options.once => error,
            Err(error) => return Err(error),
        };
        if !std::mem::replace(&mut is_told, true) {
            tracing::error!(error = %Chain(&error), "Agent does not start before its volume has room, and waits for that");
            service.waits_for_room();
        }
        loop {
            tokio::select! {
                () = shutdown.requested() => return Ok(None),
                () = tokio::time::sleep(Duration::from_millis(START_ROOM_LOOK_MS)) => {}
            }
            if error.may_have_room() {
                break;
            }
        }
    }
}

/// Runs to the end; a journal that turns out to be damaged is salvaged by a start anew, in this process.
async fn run_over_salvages(
    mut supervisor: Supervisor,
    mut options: StartOptions,
    timeout: Option<Duration>,
    shutdown: &Shutdown,
    current: &Current,
    service: &Service,
) -> Result<RunEnd, StartError> {
    let mut salvages = 0;
    loop {
        let end = supervisor.run(timeout, shutdown).await;
        if end.damage.is_none() || shutdown.is_requested() {
            return Ok(end);
        }
        salvages += 1;
        if salvages > SALVAGES_A_RUN_MAX {
            tracing::error!(salvages, "Journal is damaged again and again, see to the disk");
            return Ok(end);
        }
        // What a reload has taken up stays.
        let (loaded, fallback) = end.config.clone();
        (options.loaded, options.fallback) = (Loaded::clone(&loaded), fallback);
        let Some(next) = start(&options, shutdown, service).await? else { return Ok(end) };
        supervisor = next;
        current.set(supervisor.handle());
        service.ready();
    }
}

/// A port that is taken must not keep records from being taken: then there is the socket alone.
fn serve_admin(
    options: AdminOptions,
    first: Handle,
    current: &Current,
    shutdown: &Shutdown,
) -> anyhow::Result<admin::Admin> {
    let serve = |options| {
        let (first, current) = (first.clone(), current.clone());
        let agent: OrdersSource = Arc::new(move || current.get().unwrap_or_else(|| first.clone()));
        let asked = OrdersSource::clone(&agent);
        admin::serve(options, Arc::new(move || asked().status()), agent, shutdown.clone())
    };
    let socket = options.socket.clone();
    match serve(options) {
        Err(error @ admin::AdminError::Listen { .. }) => {
            tracing::error!(error = %Chain(&error), "Admin address cannot be used, there is the socket alone");
            Ok(serve(AdminOptions { socket, listen: None })?)
        }
        served => Ok(served?),
    }
}

fn start_failed(error: StartError) -> anyhow::Result<ExitCode> {
    let code = match &error {
        // With room it works.
        StartError::Journal(error) if error.is_full() => ExitCode::Failed,
        StartError::Journal(_) => ExitCode::Journal,
        StartError::Source { .. } | StartError::Plugin { .. } => ExitCode::Config,
        _ => ExitCode::Failed,
    };
    let error = anyhow::Error::from(error);
    super::report::report(&error);
    Ok(code)
}

/// What this run did, for machines.
fn summary(
    before: &Snapshot,
    end: &Status,
    elapsed: Duration,
    undone: &[String],
) -> serde_json::Value {
    let lanes: Vec<_> = end
        .lanes
        .iter()
        .map(|lane| {
            let earlier = before.lanes.iter().find(|known| known.name.as_str() == lane.name);
            let earlier = earlier.map_or_else(LaneTotals::default, |known| known.totals);
            // Replays take records out of the dead letters.
            let since = u64::saturating_sub;
            serde_json::json!({
                "name": lane.name,
                "state": lane.state.as_str(),
                "delivered": since(lane.delivered, earlier.delivered),
                "dropped": since(lane.dropped, earlier.dropped),
                "dead_lettered": since(lane.dead_lettered, earlier.dead_lettered),
                "queued": lane.queued,
                "outputs": since(lane.outputs_delivered, earlier.outputs_delivered),
                "files": lane.files_written,
                "bytes": lane.bytes_delivered,
            })
        })
        .collect();
    let total = |key: &str| lanes.iter().filter_map(|lane| lane[key].as_u64()).sum::<u64>();
    serde_json::json!({
        "records_in": end.sources.iter().map(|source| source.records).sum::<u64>(),
        "dropped": total("dropped"),
        "delivered": total("delivered"),
        "dead_lettered": total("dead_lettered"),
        "files": total("files"),
        "elapsed_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        "undone": undone,
        "lanes": lanes,
    })
}
