//! `waystation run`: the agent itself.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;

use super::exit::ExitCode;
use super::signals::Signals;
use crate::admin::{self, AdminOptions, OrdersSource};
use crate::clock::{Clock as _, SystemClock};
use crate::config::{self, Config};
use crate::error_chain::Chain;
use crate::limits::{ASYNC_THREADS_MAX, BLOCKING_THREADS_MAX, SALVAGES_A_RUN_MAX};
use crate::supervisor::status::Status;
use crate::supervisor::{Handle, RunEnd, StartError, StartOptions, Supervisor};
use crate::tasks::Shutdown;
use crate::units::{human_duration, parse_duration};

/// Run the agent.
///
/// Reads the config, opens the journal in the data directory and works until it gets SIGTERM or SIGINT. A record that was
/// accepted is never lost: whatever is not delivered when the agent stops is delivered after the next start.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The config file
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = config::PATH_DEFAULT)]
    pub config: PathBuf,
    /// Read finite sources to their end, deliver everything, and exit
    #[arg(long)]
    pub once: bool,
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
    let loaded =
        match config::load(&args.config, &config::process_environment, &super::inspect_plugin) {
            Ok(loaded) => loaded,
            Err(problems) => {
                super::check::print_problems(&problems, false)?;
                return Ok(ExitCode::Config);
            }
        };
    let _logging = crate::telemetry::init(&loaded.config.log);
    super::check::print_problems(&loaded.warnings, false)?;
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
        tokio::select! {
            () = signals.watch(shutdown.clone()) => {
                tracing::warn!("Second signal, ending at once; what is not delivered stays queued");
                Ok(ExitCode::Failed)
            }
            code = work(args, loaded.config, &shutdown) => code,
        }
    });
    // A blocking call that hangs, on a disk say, must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

async fn work(args: &RunArgs, config: Config, shutdown: &Shutdown) -> anyhow::Result<ExitCode> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %args.config.display(), "Agent starts");
    let clock = Arc::new(SystemClock);
    let begun = clock.monotonic();
    let options = StartOptions {
        once: args.once,
        compiler: std::env::current_exe().context("cannot find the agent's own program")?,
        clock: Arc::clone(&clock) as _,
        config,
    };
    let admin_options = AdminOptions {
        socket: options.config.admin.socket.clone(),
        listen: options.config.admin.listen,
    };
    let supervisor = match Supervisor::start(options.clone()).await {
        Ok(supervisor) => supervisor,
        Err(error) => return start_failed(error),
    };
    let before = supervisor.handle().status();
    let current = Arc::new(Mutex::new(supervisor.handle()));
    let admin_shutdown = Shutdown::new();
    let mut admin = serve_admin(admin_options, &current, &admin_shutdown)?;
    if let Some(error) = admin.take_socket_error() {
        tracing::warn!(error = %Chain(&error), "Admin socket cannot be bound, status has to do without");
    }
    let end = match run_over_salvages(supervisor, &options, args.timeout, shutdown, &current).await
    {
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

/// Runs to the end; a journal that turns out to be damaged is salvaged by a start anew, in this process.
async fn run_over_salvages(
    mut supervisor: Supervisor,
    options: &StartOptions,
    timeout: Option<Duration>,
    shutdown: &Shutdown,
    current: &Mutex<Handle>,
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
        supervisor = Supervisor::start(options.clone()).await?;
        *current.lock().unwrap_or_else(PoisonError::into_inner) = supervisor.handle();
    }
}

/// A port that is taken must not keep records from being taken: then there is the socket alone.
fn serve_admin(
    options: AdminOptions,
    current: &Arc<Mutex<Handle>>,
    shutdown: &Shutdown,
) -> anyhow::Result<admin::Admin> {
    let serve = |options| {
        let current = Arc::clone(current);
        let agent: OrdersSource =
            Arc::new(move || current.lock().unwrap_or_else(PoisonError::into_inner).clone());
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
    before: &Status,
    end: &Status,
    elapsed: Duration,
    undone: &[String],
) -> serde_json::Value {
    let lanes: Vec<_> = end
        .lanes
        .iter()
        .map(|lane| {
            let earlier = before.lanes.iter().find(|known| known.name == lane.name);
            let since = |now: u64, then: fn(&crate::supervisor::status::LaneView) -> u64| {
                // Replays take records out of the dead letters.
                now.saturating_sub(earlier.map_or(0, then))
            };
            serde_json::json!({
                "name": lane.name,
                "state": lane.state.as_str(),
                "delivered": since(lane.delivered, |lane| lane.delivered),
                "dropped": since(lane.dropped, |lane| lane.dropped),
                "dead_lettered": since(lane.dead_lettered, |lane| lane.dead_lettered),
                "queued": lane.queued,
                "outputs": since(lane.outputs_delivered, |lane| lane.outputs_delivered),
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
