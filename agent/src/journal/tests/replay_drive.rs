//! Replays of dead letters among the operations made up at random.

use super::super::*;
use super::drive::{Driver, Failed};
use super::model::{batch, letter, letter_model, letter_record};
use crate::clock::Timestamp;

impl Driver {
    /// Replays some letters of one batch and stage, beginning with this one, or has plugins leave nothing of them or give them
    /// up again.
    pub(super) async fn replay(&mut self, first: u8, count: u8, end: u8) -> Result<(), Failed> {
        self.settle().await?;
        let journal = self.journal.as_ref().unwrap();
        // Read from the tables: what is queued is there with the answer to this.
        journal.discard_letters(Vec::new(), None).await?;
        let rows = journal.letters(&LettersFilter { limit: 1000, ..LettersFilter::default() })?;
        let model = self.model();
        assert_eq!(rows.len(), model.letters.len());
        let both = || rows.iter().zip(&model.letters);
        let open: Vec<_> = both().filter(|(row, _)| row.lane.is_some()).collect();
        let Some((chosen, of)) = open.get(usize::from(first) % open.len().max(1)) else {
            return Ok(());
        };
        let key = of.lane.clone().unwrap();
        let is_like = |row: &Letter| {
            (&row.lane, &row.batch, &row.stage) == (&chosen.lane, &chosen.batch, &chosen.stage)
        };
        let wanted = 1 + usize::from(count) % 4;
        let group: Vec<_> = both()
            .filter(|(row, _)| is_like(row))
            .take(wanted)
            .map(|(row, _)| row.clone())
            .collect();
        self.replay_group(&key, &group, end).await
    }

    async fn replay_group(
        &mut self,
        key: &(String, String),
        group: &[Letter],
        end: u8,
    ) -> Result<(), Failed> {
        if !self.lanes.contains_key(key) {
            self.open_lane(&key.0, &key.1, false).await?;
        }
        let lane_name = self.lanes[key].name().clone();
        let of = group[0].batch.clone().unwrap();
        let known = self.journal.as_ref().unwrap().letter_batch(lane_name.as_str(), &of)?;
        let replays = known.map_or(0, |batch| batch.replays) + 1;
        let mut shown = Shown::of_identity(&lane_name, &of).unwrap();
        shown.suffix.push_str(&format!("/r{replays}"));
        let mut model = self.model().clone();
        let number = model.lanes[key].next_batch;
        let seqs = || group.iter().map(|letter| letter.seq.unwrap());
        let (first, last) = (seqs().min().unwrap(), seqs().max().unwrap());
        let mut sealed = batch(number, first, last);
        sealed.variant = Variant { shown: Some(shown), replay: true, ..Variant::default() };
        let ids: Vec<i64> = group.iter().map(|letter| letter.id).collect();
        let is_of_transform = group[0].plugin_sha256.is_some();
        let names: Vec<String> =
            group.iter().map(|letter| letter.record.clone().unwrap()).collect();
        let is_in = |name: &str| names.iter().any(|known| known == name);
        model.lanes.get_mut(key).unwrap().next_batch += 1;
        let (mut returned, mut without_output) = (Vec::new(), Vec::new());
        match end {
            0 => {
                without_output.clone_from(&ids);
                (sealed.records, sealed.parts) = (0, 0);
                model.take_away(key, false, |letter| is_in(&letter.name));
            }
            1 if is_of_transform => {
                for row in group {
                    let record = row.record.clone().unwrap();
                    returned.push((row.id, letter(row.seq.unwrap(), record, Vec::new())));
                }
                (sealed.records, sealed.parts) = (0, 0);
            }
            _ => {
                let payloads: Vec<_> = group.iter().map(|_| self.payload(3)).collect();
                let content = self.store_parts(key, number, first, &[payloads]).await?;
                (sealed.records, sealed.parts) = (group.len() as u64, 1);
                let lane = model.lanes.get_mut(key).unwrap();
                lane.replays.push((sealed.clone(), content, names.clone()));
                let letters = model.letters.iter_mut().filter(|letter| is_in(&letter.name));
                letters.for_each(|letter| letter.under_way = Some(number));
            }
        }
        let seal = ReplaySeal {
            batch: sealed,
            stage: group[0].stage.clone(),
            of,
            replays,
            letters: ids,
            without_output,
            returned,
            further: Vec::new(),
            repair: None,
            state: Vec::new(),
            made_bytes: 0,
        };
        if group.iter().any(|letter| letter.is_under_way) {
            return self.be_refused(key, seal).await;
        }
        let step = self.step(model);
        self.lanes[key].seal_replay(seal).await?;
        self.acknowledge(step);
        Ok(())
    }

    /// Letters that are under way are not replayed again.
    async fn be_refused(&mut self, key: &(String, String), seal: ReplaySeal) -> Result<(), Failed> {
        match self.lanes[key].seal_replay(seal).await {
            Err(JournalError::Misfit { .. }) => {}
            // A disk that fails is the reason before any other.
            Err(error) => return Err(error.into()),
            Ok(_) => panic!("letters that are under way are replayed again"),
        }
        // As a lane does that goes on with the number.
        self.lanes[key].discard_parts().await?;
        Ok(())
    }

    /// Settles the oldest replay of a lane: cuts it, or delivers it without its first `returned` records.
    pub(super) async fn settle_replay(
        &mut self,
        lane: u8,
        returned: u8,
        cut: bool,
    ) -> Result<(), Failed> {
        let Some(key) = self.lane(lane).await? else { return Ok(()) };
        self.settle().await?;
        let mut model = self.model().clone();
        let lane = model.lanes.get_mut(&key).unwrap();
        let Some((batch, content, names)) = lane.replays.first().cloned() else { return Ok(()) };
        lane.replays.remove(0);
        if cut && batch.records > 1 {
            let half = |number: u64, records| {
                let mut half = batch.clone();
                half.records = records;
                half.variant.suffix.push_str(&format!(".{number}"));
                half.variant.first_record += number;
                half
            };
            let halves = [half(0, 1), half(1, batch.records - 1)];
            let [first, second] = halves.clone();
            let rest = (content[1..].to_vec(), names[1..].to_vec());
            lane.replays.insert(0, (second, rest.0, rest.1));
            lane.replays.insert(0, (first, content[..1].to_vec(), names[..1].to_vec()));
            let step = self.step(model);
            self.lanes[&key].cut(&batch, Halves { halves, first_inputs: 0 }).await?;
            self.acknowledge(step);
            return Ok(());
        }
        let count = usize::from(returned) % (names.len() + 1);
        lane.totals.outputs_delivered += batch.records - count as u64;
        let state = super::model::of_sink(&mut lane.state);
        let is_last = lane.replays.iter().all(|(other, ..)| other.number != batch.number);
        let mut letters = Vec::new();
        for name in &names[..count] {
            let at = model.letters.iter().position(|letter| letter.name == *name).unwrap();
            let old = model.letters[at].clone();
            let seq = old.seq.unwrap().cast_unsigned();
            let is_of_tick = old.is_of_tick;
            let record = letter_record(seq, name.clone(), old.payload.clone());
            letters.push(LetterRecord { is_of_tick, ..record });
            if old.stage == key.1 {
                model.letters[at].under_way = None;
            } else {
                let mut new = letter_model(
                    Some(&key),
                    &key.1,
                    Some(seq),
                    &format!("{name} again"),
                    &old.payload,
                );
                letters.last_mut().unwrap().identity = new.name.clone();
                new.is_of_tick = is_of_tick;
                new.stays = model.stays(&new).unwrap_or(false);
                model.letters.push(new);
            }
        }
        if is_last {
            let number = batch.number.0;
            model.take_away(&key, true, |letter| letter.under_way == Some(number));
        }
        let step = self.step(model);
        let (class, at) = (LetterClass::Rejected, Timestamp(3));
        let letters = SinkLetters { class, attempts: 1, first_at: at, last_at: at, letters, state };
        self.lanes[&key].ack_replay(&batch, letters, 0).await?;
        self.acknowledge(step);
        Ok(())
    }
}
