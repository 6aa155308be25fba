//! The plugin under test, called as a lane calls it: instances for batches, calls within bounds, state that the host keeps.

use std::sync::Arc;

use super::compare::Got;
use crate::clock::Timestamp;
use crate::plugin::config::TransformConfig;
use crate::plugin::{CallError, Instance, Plugin, State, StateDelta, StateView};
use crate::record::RecordView;
use crate::record::batch::LanePlace;

/// A plugin with its settings.
pub(super) struct Guest {
    pub(super) plugin: Plugin,
    pub(super) config: TransformConfig,
    pub(super) place: LanePlace,
}

impl Guest {
    /// A new instance that sees this state.
    pub(super) fn instance(&self, state: &Arc<State>) -> Result<Instance, CallError> {
        let view = StateView::new(Arc::clone(state), StateDelta::new());
        self.plugin.instantiate(&self.place, view)
    }

    /// A batch by a new instance; what it changes in the state is kept, as when the batch is sealed.
    pub(super) fn batch(
        &self,
        now: Timestamp,
        records: &[RecordView<'_>],
        state: &mut Arc<State>,
    ) -> Result<Vec<Got>, CallError> {
        let mut instance = self.instance(state)?;
        let got = self.calls(&mut instance, now, records)?;
        Arc::make_mut(state).apply(instance.into_state().into_delta());
        Ok(got)
    }

    /// The calls of a batch, each within the bounds of the config. Without records there is one call all the same.
    pub(super) fn calls(
        &self,
        instance: &mut Instance,
        now: Timestamp,
        records: &[RecordView<'_>],
    ) -> Result<Vec<Got>, CallError> {
        let mut got = Vec::with_capacity(records.len());
        let mut rest = records;
        loop {
            let (call, more) = rest.split_at(self.call_length(rest));
            let outcomes = instance.process(now, call)?;
            got.extend(
                call.iter().zip(outcomes).map(|(record, outcome)| Got::new(record, outcome)),
            );
            if more.is_empty() {
                return Ok(got);
            }
            rest = more;
        }
    }

    fn call_length(&self, records: &[RecordView<'_>]) -> usize {
        let mut bytes = 0;
        let fitting = records.iter().take(self.config.call_records_max as usize);
        let fitting = fitting.take_while(|record| {
            bytes += record.size_bytes();
            bytes <= self.config.call_bytes_max.as_usize()
        });
        fitting.count().max(1).min(records.len())
    }
}
