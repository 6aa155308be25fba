//! What destinations do to sinks, and what a sink must make of it.
//!
//! All scenarios are about the same batch. What it comes to when nothing goes wrong is the measure for all others: whatever goes
//! wrong, in the end the destination has been told to its satisfaction what it is told then, byte by byte, and nothing else.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::destination::{Answer, Sent};
use super::rig::{GIVEN_UP, Lane, Rig, broke_down, said};
use crate::cli::plugin::report::Verdict;
use crate::clock::{Clock as _, SystemClock};
use crate::limits::{
    PLUGIN_CERTIFY_BATCHES, PLUGIN_CERTIFY_FAULTS_MAX, PLUGIN_TEST_GUEST_GROWTH_BYTES_MAX,
};
use crate::plugin::{HttpClient, HttpFailure, HttpRequest, HttpResponse, SinkCall, StateView};
use crate::record::RecordView;
use crate::record::batch::FrameBlock;
use crate::record::id::write_record_identity;
use crate::sinks::{Class, Delivered, SinkError};
use crate::units::human_bytes;

/// One scenario.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) run: fn(&Rig, &[Sent]) -> Verdict,
}

/// The scenarios, in the order in which they are run.
pub(super) const SCENARIOS: [Scenario; 16] = [
    Scenario { name: "the same batch again", run: again },
    Scenario { name: "an answer that is lost", run: |rig, clean| lost(rig, clean, &Answer::Close) },
    Scenario {
        name: "an answer that breaks off",
        run: |rig, clean| lost(rig, clean, &Answer::BreakOff),
    },
    Scenario { name: "no answer in time", run: |rig, clean| lost(rig, clean, &Answer::Silence) },
    Scenario { name: "an instance that is lost in the middle of a batch", run: lost_instance },
    Scenario { name: "an agent that stops in the middle of a batch", run: drain },
    Scenario { name: "500, 502, 503 and 504", run: broken },
    Scenario { name: "429 and 503 with Retry-After", run: busy },
    Scenario { name: "401, 403 and 404", run: forbidden },
    Scenario { name: "400, 413 and 422", run: refused },
    Scenario { name: "a redirect", run: redirected },
    Scenario { name: "one record that is refused", run: one_refused },
    Scenario { name: "answers that nobody expects", run: odd_answers },
    Scenario { name: "payloads that nobody expects", run: odd_payloads },
    Scenario { name: "probes", run: probes },
    Scenario { name: "2000 batches by one instance, flat memory", run: memory },
];

/// Has the batch delivered while nothing goes wrong, and gives what was sent, which all other scenarios are measured by.
pub(super) fn clean(rig: &Rig) -> (Verdict, Vec<Sent>) {
    let mut lane = rig.good_lane();
    let batch = rig.batch();
    let result = lane.deliver(&batch);
    let sent = rig.destination.sent();
    if !matches!(&result, Ok(delivered) if delivered.refused.is_empty()) {
        let lines = [
            format!("a destination that answers well is told nothing good: {}", said(&result)),
            "without a batch that is delivered there is nothing to compare; --config, --records and --answer make one possible"
                .to_owned(),
        ];
        return (Verdict::failed(lines), Vec::new());
    }
    let verdict = match sent.as_slice() {
        [] => Verdict::failed(["it says delivered, and has sent nothing".to_owned()]),
        sent => identified(rig, sent),
    };
    let bytes = sent.iter().map(|sent| sent.body.len() as u64).sum();
    let count = match sent.len() {
        1 => "1 request".to_owned(),
        more => format!("{more} requests"),
    };
    (verdict.noted(format!("{count}, {}", human_bytes(bytes))), sent)
}

/// Whether the destination is told what it can recognise a repeat by.
fn identified(rig: &Rig, sent: &[Sent]) -> Verdict {
    let batch = rig.batch();
    let mut identities = vec![batch.facts.identity()];
    identities.extend(record_ids(rig));
    let known: Vec<_> = identities
        .iter()
        .flat_map(|id| [id.clone(), id.replace('/', "%2F"), id.replace('/', "%2f")])
        .collect();
    let is_in =
        |bytes: &[u8]| known.iter().any(|id| memchr::memmem::find(bytes, id.as_bytes()).is_some());
    let is_told = |sent: &Sent| {
        let headers = || sent.headers.iter().any(|(_, value)| is_in(value.as_bytes()));
        is_in(sent.url.as_bytes()) || headers() || is_in(&sent.body)
    };
    match sent.iter().find(|sent| !sent.body.is_empty() && !is_told(sent)) {
        None => Verdict::passed(),
        Some(sent) => Verdict::warning([
            format!("{} holds neither the batch's id nor a record's", shown(sent)),
            "a batch may be sent again, after a power cut even when it was answered: without an id, as Idempotency-Key, in the URL or in the body, the destination counts it twice, unless a repeat of the same content does no harm there"
                .to_owned(),
        ]),
    }
}

fn record_ids(rig: &Rig) -> Vec<String> {
    let batch = rig.batch();
    let mut reader = batch.content.open();
    let block = reader.next_block().ok().flatten();
    let records = block.iter().flat_map(FrameBlock::records).filter_map(Result::ok);
    records
        .map(|record| {
            let mut id = String::new();
            write_record_identity(&mut id, &rig.place.lane, &record);
            id
        })
        .collect()
}

/// What has come to light in a scenario.
#[derive(Default)]
struct Findings {
    failures: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn fail(&mut self, line: impl Into<String>) {
        push_once(&mut self.failures, line.into());
    }

    fn warn(&mut self, line: impl Into<String>) {
        push_once(&mut self.warnings, line.into());
    }

    fn verdict(mut self) -> Verdict {
        if !self.failures.is_empty() {
            self.failures.extend(self.warnings);
            return Verdict::failed(self.failures);
        }
        if self.warnings.is_empty() { Verdict::passed() } else { Verdict::warning(self.warnings) }
    }

    /// Has the batch delivered at last, and compares what was sent in all with what a clean run sends.
    fn settle(&mut self, when: &str, lane: &mut Lane<'_>, clean: &[Sent]) {
        if let Err(problem) = lane.settle(&lane.rig.batch()) {
            self.fail(format!("{when}: {problem}"));
            return;
        }
        self.compare(when, &lane.rig.destination.sent(), clean);
    }

    fn compare(&mut self, when: &str, sent: &[Sent], clean: &[Sent]) {
        if let Some(strange) =
            sent.iter().find(|sent| !clean.iter().any(|known| known.is_like(sent)))
        {
            self.fail(format!("{when}: another attempt sends something else"));
            difference(strange, clean).into_iter().for_each(|line| self.fail(line));
            self.fail(
                "a batch goes out as it was, or the destination takes its repeat for something new",
            );
            return;
        }
        let is_taken = |known: &Sent| sent.iter().any(|sent| sent.taken && known.is_like(sent));
        if let Some(missing) = clean.iter().find(|known| !is_taken(known)) {
            self.fail(format!(
                "{when}: it says delivered, and the destination has never taken {}",
                shown(missing)
            ));
        }
    }

    /// Whether the sink has left a batch to be delivered again that failed at this request; notes what it says otherwise.
    fn tries_again(
        &mut self,
        when: &str,
        rig: &Rig,
        at: usize,
        result: &Result<Delivered, SinkError>,
    ) -> bool {
        match result {
            Ok(_) if is_repeated(&rig.destination.sent(), at) => self.warn(
                "it sends a request that failed again by itself: the agent does that, with a backoff, and knows when to stop",
            ),
            Ok(_) => {
                self.fail(format!(
                    "{when}: it says {}, and the destination has not taken it: the records are lost",
                    said(result)
                ));
                return false;
            }
            Err(error) if broke_down(error) => {
                self.fail(format!("{when}: {error}"));
                return false;
            }
            Err(error) if error.reason == GIVEN_UP => self.warn(format!(
                "{when}: it goes on when a request has failed, until the attempt is given up: return, the agent tries again"
            )),
            Err(SinkError { class: Class::Retryable | Class::Unreachable, .. }) => {}
            Err(_) => {
                self.fail(format!(
                    "{when}: it says {}; the batch is good, and would be given up: say unreachable or retryable",
                    said(result)
                ));
                return false;
            }
        }
        true
    }
}

fn push_once(lines: &mut Vec<String>, line: String) {
    if !lines.contains(&line) {
        lines.push(line);
    }
}

fn shown(sent: &Sent) -> String {
    format!(
        "request {} ({} {}, {})",
        sent.number + 1,
        sent.method,
        sent.url,
        human_bytes(sent.body.len() as u64)
    )
}

/// In what a request differs from the one that it is most like.
fn difference(strange: &Sent, clean: &[Sent]) -> Vec<String> {
    let same_place = |known: &&Sent| (&known.method, &known.url) == (&strange.method, &strange.url);
    let Some(known) = clean.iter().find(same_place) else {
        return vec![format!("  {} is none of those of a clean run", shown(strange))];
    };
    let both = known.body.iter().zip(&strange.body);
    let at = both.take_while(|(one, two)| one == two).count();
    let around = |body: &[u8]| {
        let from = at.saturating_sub(20);
        let part = body.get(from..body.len().min(at + 30)).unwrap_or_default();
        String::from_utf8_lossy(part).into_owned()
    };
    vec![
        format!("  {} differs at byte {at} of its body", shown(strange)),
        format!("    clean  …{}…", around(&known.body)),
        format!("    now    …{}…", around(&strange.body)),
    ]
}

/// By the same instance, and by one that knows the state only: as after a power cut that took the outcome with it.
fn again(rig: &Rig, clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    for (when, is_new) in [("the same instance", false), ("a new instance", true)] {
        let mut lane = rig.good_lane();
        for _ in 0..2 {
            let result = lane.deliver(&rig.batch());
            if !matches!(&result, Ok(delivered) if delivered.refused.is_empty()) {
                findings.fail(format!("{when}: it says {}", said(&result)));
            }
            if is_new {
                lane.lose_instance();
            }
        }
        let sent = rig.destination.sent();
        findings.compare(when, &sent, clean);
        for name in other_headers(&sent, clean) {
            findings.warn(format!("the header {name} has another value each time"));
        }
    }
    findings.verdict()
}

/// Names of headers that requests for the same have with other values.
fn other_headers(sent: &[Sent], clean: &[Sent]) -> Vec<String> {
    let mut names = Vec::new();
    for sent in sent {
        let Some(known) = clean.iter().find(|known| known.is_like(sent)) else { continue };
        let other = sent.headers.iter().filter(|header| !known.headers.contains(header));
        other.for_each(|(name, _)| push_once(&mut names, name.clone()));
    }
    names
}

/// The scripts in which this happens at each request of the batch, and all is well otherwise.
fn at_each<'c>(
    rig: &Rig,
    clean: &'c [Sent],
    fault: &Answer,
) -> impl Iterator<Item = (usize, impl Fn(&Sent) -> Answer + Send + use<>)> + use<'c> {
    let (good, fault) = (rig.good.clone(), fault.clone());
    (0..clean.len().min(PLUGIN_CERTIFY_FAULTS_MAX)).map(move |at| {
        let (good, fault) = (good.clone(), fault.clone());
        (at, move |sent: &Sent| if sent.number == at { fault.clone() } else { good.clone() })
    })
}

/// The destination has read a request, and nobody hears whether it has taken it.
fn lost(rig: &Rig, clean: &[Sent], fault: &Answer) -> Verdict {
    let mut findings = Findings::default();
    for (at, script) in at_each(rig, clean, fault) {
        let when = format!("at request {}", at + 1);
        let mut lane = rig.lane(script);
        let result = lane.deliver(&rig.batch());
        if findings.tries_again(&when, rig, at, &result) {
            findings.settle(&when, &mut lane, clean);
        }
    }
    findings.verdict()
}

fn is_repeated(sent: &[Sent], at: usize) -> bool {
    let Some(failed) = sent.get(at) else { return false };
    sent.iter().skip(at + 1).any(|later| later.taken && later.is_like(failed))
}

fn lost_instance(rig: &Rig, clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    for (at, script) in at_each(rig, clean, &Answer::Close) {
        let mut lane = rig.lane(script);
        let _lost = lane.deliver(&rig.batch());
        lane.lose_instance();
        findings.settle(&format!("at request {}", at + 1), &mut lane, clean);
    }
    findings.verdict()
}

fn drain(rig: &Rig, clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    let mut lane = rig.lane(|_| Answer::Silence);
    if !lane.deliver_and_stop(&rig.batch()) {
        findings.fail("it ended by itself, though its request has no answer");
    }
    lane.lose_instance();
    findings.settle("after the restart", &mut lane, clean);
    findings.verdict()
}

fn broken(rig: &Rig, clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    for status in [500, 502, 503, 504] {
        for (at, script) in at_each(rig, clean, &Answer::status(status)) {
            let when = format!("{status} to request {}", at + 1);
            let mut lane = rig.lane(script);
            let result = lane.deliver(&rig.batch());
            if findings.tries_again(&when, rig, at, &result) {
                findings.settle(&when, &mut lane, clean);
            }
        }
    }
    findings.verdict()
}

fn busy(rig: &Rig, clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    for status in [429, 503] {
        let fault = Answer::Status(status, Some(("retry-after", "7")), Bytes::new());
        for (at, script) in at_each(rig, clean, &fault) {
            let when = format!("{status} to request {}", at + 1);
            let mut lane = rig.lane(script);
            let result = lane.deliver(&rig.batch());
            if !findings.tries_again(&when, rig, at, &result) {
                continue;
            }
            if let Err(error) = &result
                && error.retry_after != Some(Duration::from_secs(7))
            {
                findings.warn(format!(
                    "{status} with \"Retry-After: 7\": it does not hand the wait on as retry-after-ms, so the agent may come sooner"
                ));
            }
            findings.settle(&when, &mut lane, clean);
        }
    }
    findings.verdict()
}

fn forbidden(rig: &Rig, clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    for status in [401, 403, 404] {
        for (at, script) in at_each(rig, clean, &Answer::status(status)) {
            let when = format!("{status} to request {}", at + 1);
            let mut lane = rig.lane(script);
            let result = lane.deliver(&rig.batch());
            if !findings.tries_again(&when, rig, at, &result) {
                continue;
            }
            if let Err(SinkError { class: Class::Retryable, .. }) = &result {
                findings.warn(format!(
                    "{status}: it says retryable, which is borne for the retry budget; say unreachable of what an operator has to put right, and the lane holds"
                ));
            }
            findings.settle(&when, &mut lane, clean);
        }
    }
    findings.verdict()
}

fn refused(rig: &Rig, _clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    for status in [400, 413, 422] {
        let mut lane = rig.lane(move |_| Answer::status(status));
        let result = lane.deliver(&rig.batch());
        let all = rig.payloads.len();
        match &result {
            Ok(delivered) if delivered.refused.len() == all => {}
            Err(SinkError { class: Class::Rejected, .. }) => {}
            Err(error) if broke_down(error) => findings.fail(format!("{status}: {error}")),
            Err(_) => findings.fail(format!(
                "{status}: it says {}; what is never taken would be sent for ever, or hold the lane: say rejected",
                said(&result)
            )),
            Ok(_) => findings.fail(format!(
                "{status}: it says {}, and the destination has refused it: the records are lost",
                said(&result)
            )),
        }
    }
    findings.verdict()
}

fn redirected(rig: &Rig, clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    for status in [302, 307] {
        let fault = Answer::Status(status, Some(("location", "/elsewhere")), Bytes::new());
        for (at, script) in at_each(rig, clean, &fault) {
            let when = format!("{status} to request {}", at + 1);
            let mut lane = rig.lane(script);
            let result = lane.deliver(&rig.batch());
            let sent = rig.destination.sent();
            if result.is_ok() && sent.iter().any(|sent| sent.url.ends_with("/elsewhere")) {
                findings.warn("it follows redirects by itself: records may go where nobody meant");
            } else if findings.tries_again(&when, rig, at, &result) {
                findings.settle(&when, &mut lane, clean);
            }
        }
    }
    findings.verdict()
}

/// How a payload may stand in a body.
fn spellings(payload: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![payload.to_vec(), STANDARD.encode(payload).into_bytes()];
    if let Ok(text) = std::str::from_utf8(payload) {
        let quoted = serde_json::Value::from(text).to_string();
        all.push(quoted.trim_matches('"').as_bytes().to_vec());
    }
    all
}

/// A record that can be told from the others in what is sent: its place, and how it stands there.
fn recognisable(rig: &Rig, clean: &[Sent]) -> Option<(usize, Vec<u8>)> {
    let count = |needle: &[u8]| -> usize {
        clean.iter().map(|sent| memchr::memmem::find_iter(&sent.body, needle).count()).sum()
    };
    let places = (0..rig.payloads.len()).rev();
    let mut found = places.filter_map(|at| {
        let payload = rig.payloads.get(at).filter(|payload| !payload.is_empty())?;
        let spelling = spellings(payload).into_iter().find(|spelling| count(spelling) == 1)?;
        Some((at, spelling))
    });
    found.next()
}

/// The destination refuses what holds one of the records. It is cut out as a lane does it: by halves.
fn one_refused(rig: &Rig, clean: &[Sent]) -> Verdict {
    let Some((bad, spelling)) = recognisable(rig, clean) else {
        return Verdict::passed()
            .noted("not run: no record can be seen in what is sent".to_owned());
    };
    let good = rig.good.clone();
    let mut lane = rig.lane(move |sent| {
        let is_there = memchr::memmem::find(&sent.body, &spelling).is_some();
        if is_there { Answer::status(422) } else { good.clone() }
    });
    let all: Vec<_> = (0..rig.payloads.len()).collect();
    let mut found = Vec::new();
    if let Err(problem) = cut(&mut lane, &all, "", &mut found) {
        return Verdict::failed([problem]);
    }
    if found == [bad] {
        return Verdict::passed();
    }
    let records = found.iter().map(|at| (at + 1).to_string()).collect::<Vec<_>>().join(", ");
    Verdict::failed([
        format!("the destination refuses record {} only, and it gives up: {records}", bad + 1),
        "reject a record by name, or the batch as a whole: then the agent cuts it in half until the record is found"
            .to_owned(),
    ])
}

fn cut(
    lane: &mut Lane<'_>,
    records: &[usize],
    suffix: &str,
    found: &mut Vec<usize>,
) -> Result<(), String> {
    let payload = |at: &usize| lane.rig.payloads.get(*at).map(|bytes| (*at as u64, &bytes[..]));
    let content: Vec<_> = records.iter().filter_map(payload).collect();
    let batch = lane.rig.batch_of(1, suffix, &content);
    match lane.deliver(&batch) {
        Ok(delivered) => {
            let place = |index: u64| usize::try_from(index).ok().and_then(|at| records.get(at));
            found.extend(delivered.refused.iter().filter_map(|refused| place(refused.index)));
            Ok(())
        }
        Err(SinkError { class: Class::Rejected, .. }) if records.len() == 1 => {
            found.extend(records);
            Ok(())
        }
        Err(SinkError { class: Class::Rejected, .. }) => {
            let (one, two) = records.split_at(records.len().div_ceil(2));
            cut(lane, one, &format!("{suffix}.0"), found)?;
            cut(lane, two, &format!("{suffix}.1"), found)
        }
        Err(error) => Err(format!("422 to what holds one record: it says {}", said(&Err(error)))),
    }
}

fn odd_answers(rig: &Rig, clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    let plain = |status| Answer::status(status);
    let body = |bytes: Bytes| Answer::Status(200, None, bytes);
    let odd = [
        ("200 without a body", plain(200)),
        ("204", plain(204)),
        ("299", plain(299)),
        ("418", plain(418)),
        ("599", plain(599)),
        ("999", plain(999)),
        ("1 MiB that is no UTF-8", body(vec![0xff; 1 << 20].into())),
        ("JSON that ends too soon", body(Bytes::from_static(b"{\"status\":"))),
        ("JSON a thousand deep", body("[".repeat(1000).into_bytes().into())),
        (
            "a Retry-After that is no number",
            Answer::Status(503, Some(("retry-after", "s\u{f6}on")), Bytes::new()),
        ),
        (
            "a Retry-After of centuries",
            Answer::Status(503, Some(("retry-after", "99999999999999999999")), Bytes::new()),
        ),
    ];
    for (what, fault) in odd {
        for (at, script) in at_each(rig, clean, &fault) {
            let when = format!("{what} to request {}", at + 1);
            match rig.lane(script).deliver(&rig.batch()) {
                Err(error) if broke_down(&error) => findings.fail(format!("{when}: {error}")),
                _ => {}
            }
        }
    }
    findings.verdict()
}

fn odd_payloads(rig: &Rig, _clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    let large = format!(r#"{{"pad":"{}"}}"#, "x".repeat(1 << 20));
    let odd: [(&str, &[u8]); 5] = [
        ("an empty payload", b""),
        ("a payload that is no UTF-8", b"\xff\xfe{\"a\":1}\0\x80"),
        ("a payload that is no JSON", b"{\"a\": 1, oops"),
        ("a payload with line ends in it", b"a\r\nb\n"),
        ("a payload of 1 MiB", large.as_bytes()),
    ];
    for (number, (what, payload)) in (2..).zip(odd) {
        let mut lane = rig.good_lane();
        let result = lane.deliver(&rig.batch_of(number, "", &[(0, payload)]));
        match &result {
            Ok(_) | Err(SinkError { class: Class::Rejected, .. }) => {}
            Err(error) if broke_down(error) => findings.fail(format!("{what}: {error}")),
            Err(_) => findings.fail(format!(
                "{what}: it says {}, and would never get past it: reject the record",
                said(&result)
            )),
        }
    }
    findings.verdict()
}

fn probes(rig: &Rig, _clean: &[Sent]) -> Verdict {
    let mut findings = Findings::default();
    if let Err(error) = rig.good_lane().probe() {
        let problem =
            "a destination that answers well is never found again, and its lane holds for ever";
        findings.fail(format!("{}: {error}; {problem}", error.class.as_str()));
    }
    for (what, answer) in [("503", Answer::status(503)), ("no answer", Answer::Close)] {
        match rig.lane(move |_| answer.clone()).probe() {
            Err(error) if broke_down(&error) => findings.fail(format!("{what}: {error}")),
            Err(SinkError { class: Class::Retryable | Class::Unreachable, .. }) => {}
            Err(error) => findings.fail(format!("{what}: it says {}", error.class.as_str())),
            Ok(()) => findings.warn(format!(
                "{what}: it says that a batch would be taken: during an outage each probe costs an attempt"
            )),
        }
    }
    findings.verdict()
}

/// Answers by itself, without a network: what is measured is the guest.
struct AtOnce {
    status: u16,
    body: Vec<u8>,
}

impl HttpClient for AtOnce {
    fn send(&self, _request: HttpRequest) -> Result<HttpResponse, HttpFailure> {
        Ok(HttpResponse { status: self.status, headers: Vec::new(), body: self.body.clone() })
    }

    fn is_over(&self) -> bool {
        false
    }

    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

fn memory(rig: &Rig, _clean: &[Sent]) -> Verdict {
    let Answer::Status(status, _, body) = &rig.good else { return Verdict::passed() };
    let http = Arc::new(AtOnce { status: *status, body: body.to_vec() });
    let batch = rig.batch();
    let block = batch.content.open().next_block().ok().flatten();
    let records: Vec<RecordView<'_>> =
        block.iter().flat_map(FrameBlock::records).filter_map(Result::ok).collect();
    let ids = record_ids(rig);
    let mut instance = match rig.plugin.instantiate(&rig.place, StateView::default()) {
        Ok(instance) => instance,
        Err(error) => return Verdict::failed([format!("it does not begin: {error}")]),
    };
    let warm = PLUGIN_CERTIFY_BATCHES / 5;
    let mut before = 0;
    let mut id = String::new();
    for number in 0..PLUGIN_CERTIFY_BATCHES {
        if number == warm {
            before = instance.memory_bytes();
        }
        id.clear();
        // Writing to a String cannot fail.
        let _ok = write!(id, "{}/b{number}", rig.place.lane);
        let call = SinkCall {
            id: &id,
            attempt: 1,
            now: SystemClock.now(),
            left: rig.attempt_timeout,
            ids: &ids,
            records: &records,
        };
        let answers = Arc::<AtOnce>::clone(&http);
        if let Err(failure) = instance.deliver(call, StateView::default(), answers) {
            return Verdict::failed([format!("in batch {}: {failure:?}", number + 1)]);
        }
    }
    let now = instance.memory_bytes();
    let grown = now.saturating_sub(before);
    if grown > PLUGIN_TEST_GUEST_GROWTH_BYTES_MAX {
        return Verdict::failed([format!(
            "its memory grew by {} from batch {warm} to {PLUGIN_CERTIFY_BATCHES}, to {}; an instance lives for up to an hour",
            human_bytes(grown as u64),
            human_bytes(now as u64)
        )]);
    }
    Verdict::passed().noted(format!("{} of guest memory", human_bytes(now as u64)))
}
