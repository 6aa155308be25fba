//! One transform in a lane: its instance, its state, and what becomes of a record after its call.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::LaneError;
use crate::clock::Timestamp;
use crate::journal::{LetterRecord, StageLetter};
use crate::plugin::config::{InstanceLife, TransformConfig};
use crate::plugin::{CallError, Draft, Instance, Outcome, Plugin, State, StateDelta, StateView};
use crate::record::batch::LanePlace;
use crate::record::id::write_record_identity;
use crate::record::{HeadersBuffer, Origin, PathBuffer, RecordView};

/// One transform of a pipeline: its settings and its plugin.
#[derive(Debug, Clone)]
pub struct Transform {
    /// The settings.
    pub config: TransformConfig,
    /// The plugin.
    pub plugin: Plugin,
}

/// What a pass left out.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    pub(super) letters: Vec<StageLetter>,
    /// Records that the pipeline does not take.
    pub(super) not_taken: u64,
}

/// One transform as a lane runs it.
pub(super) struct Stage {
    pub(super) transform: Transform,
    pub(super) state: Arc<State>,
    /// The instance of this run; with `instance = "reuse"` that of the run before.
    pub(super) instance: Option<Instance>,
    /// Records of one call: what the config says, or less since a larger call broke a limit that its halves did not.
    pub(super) call_records_max: usize,
    headers: HeadersBuffer,
    path: PathBuffer,
}

impl Stage {
    pub(super) fn new(transform: Transform, stored: BTreeMap<String, Vec<u8>>) -> Self {
        let entries = stored.into_iter().map(|(key, value)| (key, Arc::from(value))).collect();
        Self {
            call_records_max: transform.config.call_records_max as usize,
            transform,
            state: Arc::new(State::new(entries)),
            instance: None,
            headers: HeadersBuffer::default(),
            path: PathBuffer::default(),
        }
    }

    pub(super) fn fresh(&self, place: &LanePlace) -> Result<Instance, CallError> {
        let view = StateView::new(Arc::clone(&self.state), StateDelta::new());
        self.transform.plugin.instantiate(place, view)
    }

    /// Has an instance ready for a new batch, with the state as it is before it.
    pub(super) fn begin(&mut self, place: &LanePlace) -> Result<(), CallError> {
        match &mut self.instance {
            Some(instance) if self.transform.config.instance == InstanceLife::Reuse => {
                let view = StateView::new(Arc::clone(&self.state), StateDelta::new());
                drop(instance.replace_state(view));
            }
            _ => self.instance = Some(self.fresh(place)?),
        }
        Ok(())
    }

    /// What the batch changed. The instance goes, unless it is to be used again.
    pub(super) fn end(&mut self) -> StateDelta {
        match self.transform.config.instance {
            InstanceLife::PerBatch => {
                self.instance.take().map(|instance| instance.into_state().into_delta())
            }
            InstanceLife::Reuse => self
                .instance
                .as_mut()
                .map(|instance| instance.replace_state(StateView::default()).into_delta()),
        }
        .unwrap_or_default()
    }

    pub(super) fn process(
        &mut self,
        now: Timestamp,
        records: &[RecordView<'_>],
    ) -> Result<Vec<Outcome>, CallError> {
        match &mut self.instance {
            Some(instance) => instance.process(now, records),
            None => Err(CallError::Host("the stage has no instance".into())),
        }
    }

    /// Calls a plugin with a timer.
    pub(super) fn tick(&mut self, now: Timestamp) -> Result<Vec<Draft>, CallError> {
        match &mut self.instance {
            Some(instance) => instance.tick(now),
            None => Err(CallError::Host("the stage has no instance".into())),
        }
    }

    /// How many of these records fit one call; at least one.
    pub(super) fn call_length(&self, records: &[RecordView<'_>]) -> usize {
        let bytes_max = self.transform.config.call_bytes_max.as_usize();
        let mut bytes = 0;
        let fitting = records.iter().take(self.call_records_max).take_while(|record| {
            bytes += record.size_bytes();
            bytes <= bytes_max
        });
        fitting.count().max(1)
    }

    pub(super) fn pass_on(
        &mut self,
        place: &LanePlace,
        record: &RecordView<'_>,
        outcome: Outcome,
        aside: &mut SetAside,
        next: &mut dyn FnMut(&RecordView<'_>) -> Result<(), LaneError>,
    ) -> Result<(), LaneError> {
        match outcome {
            Outcome::Keep => next(record),
            Outcome::Drop => Ok(()),
            Outcome::Payload(payload) => next(&RecordView { payload: &payload, ..*record }),
            Outcome::Replace(draft) => {
                self.headers.clear();
                next(&drafted(record, &draft, record.origin, &mut self.headers))
            }
            Outcome::Split(drafts) => {
                for (number, draft) in (0..).zip(&drafts) {
                    self.path.set(record.origin.path, number);
                    let origin = Origin { path: self.path.as_path(), ..record.origin };
                    self.headers.clear();
                    next(&drafted(record, draft, origin, &mut self.headers))?;
                }
                Ok(())
            }
            Outcome::Reject(reason) => {
                let mut identity = String::new();
                write_record_identity(&mut identity, &place.lane, record);
                aside.letters.push(self.letter(&identity, record, "rejected", reason));
                Ok(())
            }
        }
    }

    pub(super) fn letter(
        &self,
        identity: &str,
        record: &RecordView<'_>,
        class: &'static str,
        reason: String,
    ) -> StageLetter {
        StageLetter {
            stage: self.transform.config.id.to_string(),
            plugin_sha256: self.transform.plugin.digest(),
            class,
            record: LetterRecord::new(record, identity.to_owned(), reason),
        }
    }
}

fn drafted<'a>(
    record: &RecordView<'a>,
    draft: &'a Draft,
    origin: Origin<'a>,
    headers: &'a mut HeadersBuffer,
) -> RecordView<'a> {
    for (name, value) in &draft.headers {
        headers.push(name, value);
    }
    RecordView {
        origin,
        time: draft.time.unwrap_or(record.time),
        subject: &draft.subject,
        headers: headers.as_headers(),
        payload: &draft.payload,
        ..*record
    }
}
