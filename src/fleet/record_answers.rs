//! What a node answers to another that asks for records: of its own log and of its copies, and of no third node. Blocks.

use std::collections::BTreeMap;

use thiserror::Error;

use super::fleet_logs::FleetLogs;
use super::record_questions::{
    AnswerHead, FilterSent, LogRange, MAX_ASKED_BYTES, RecordQuestion, period_named,
};
use crate::activity::merged::{ForwardPlace, MergedView};
use crate::activity::record_wire::put_record;
use crate::activity::stats::{BUCKET_US, Stats};
use crate::activity::view::View;
use crate::activity::{Filter, From, Id, Page, Payloads, PortionLimit, QueryError, Record};

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum NoAnswer {
    /// The logs cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// It is no question that this program can answer.
    #[error("it is asked what this version cannot answer")]
    Question,
}

/// The answer to a question.
///
/// # Errors
///
/// [`NoAnswer`]
pub fn answer(logs: &FleetLogs, question: RecordQuestion) -> Result<Vec<u8>, NoAnswer> {
    let answered = reply(logs, question);
    if let Err(NoAnswer::Query(error)) = &answered {
        logs.note_damage(error);
    }
    answered
}

fn reply(logs: &FleetLogs, question: RecordQuestion) -> Result<Vec<u8>, NoAnswer> {
    match question {
        RecordQuestion::Holdings => {
            let holdings = Some(logs.holdings()?);
            Ok(AnswerHead { holdings, ..AnswerHead::default() }.with_records([]))
        }
        RecordQuestion::List { ranges, filter, limit, before, payloads, count, bytes } => {
            let (filter, before) = (known(filter)?, read_id(before)?);
            let from = before.map_or(From::Newest, From::After);
            let payloads = if payloads { Payloads::Include } else { Payloads::Exclude };
            let view = logs.ranged(&ranges)?;
            let read = || {
                let found = view.list(&filter, &Page { limit, from, payloads })?;
                Ok((found, count.then(|| view.count(&filter)).transpose()?))
            };
            let (found, total) = read().map_err(QueryError::Store)?;
            let most = bytes.min(MAX_ASKED_BYTES);
            let (kept, body) = cut(&found.records, most);
            let is_cut = kept < found.records.len();
            let last = kept.checked_sub(1).and_then(|at| found.records.get(at));
            let cut_at = last.filter(|_| is_cut).map(|record| record.id);
            let next = cut_at.or(found.next_cursor).map(|id| id.to_string());
            let mut out = AnswerHead { next, total, ..AnswerHead::default() }.with_records([]);
            out.extend(body);
            Ok(out)
        }
        RecordQuestion::Get { ranges, id } => {
            let id = Id::parse(&id).ok_or(NoAnswer::Question)?;
            let found = logs.ranged(&ranges)?.get(id).map_err(QueryError::Store)?;
            Ok(AnswerHead::default().with_records(&found))
        }
        RecordQuestion::Summary { ranges, period, now } => {
            let period = period_named(&period).ok_or(NoAnswer::Question)?;
            let (first, mut steps) = (period.first_bucket(now), BTreeMap::<u64, Stats>::new());
            if now / BUCKET_US < first {
                return Err(NoAnswer::Question);
            }
            for view in logs.ranged(&ranges)?.views() {
                let add = |bucket: u64, part: &Stats| {
                    // All of a step are one.
                    let step = bucket.saturating_sub(first) / period.step_buckets();
                    let begin = first + step * period.step_buckets();
                    steps.entry(begin).or_default().merge(part);
                };
                view.buckets(first, now, add).map_err(QueryError::Store)?;
            }
            let steps = steps.iter().map(|(bucket, stats)| (*bucket, stats));
            Ok(AnswerHead::default().with_buckets(steps))
        }
        RecordQuestion::Forward { ranges, filter, after, limit, bytes } => {
            let (filter, after) = (known(filter)?, read_id(after)?);
            let view = logs.ranged(&ranges)?;
            let limit =
                PortionLimit { records: limit.max(1), bytes: bytes.clamp(1, MAX_ASKED_BYTES) };
            let removed = view.views().iter().find_map(|view| removed(view, &ranges));
            let (records, ranges) = forward(&view, after, &filter, limit)?;
            Ok(AnswerHead { ranges, removed, ..AnswerHead::default() }.with_records(&records))
        }
    }
}

/// What retention has removed since a record of that log was read.
fn removed(view: &View, ranges: &[LogRange]) -> Option<(u64, u64)> {
    let range = ranges.iter().find(|range| view.name() == Some(&range.node))?;
    let is_gone = range.after > 0 && view.first() > range.after + 1;
    is_gone.then(|| (range.after + 1, (view.first() - 1).min(range.last)))
}

/// The next records of these logs, and how far each was read.
fn forward(
    view: &MergedView,
    after: Option<Id>,
    filter: &Filter,
    limit: PortionLimit,
) -> Result<(Vec<Record>, Vec<LogRange>), QueryError> {
    let mut places = view.places(after)?;
    let records = view.forward(&mut places, filter, limit)?;
    let name = |place: &ForwardPlace| {
        let view = view.views().iter().find(|view| view.node() == place.log)?;
        view.name().map(str::to_owned)
    };
    let at = places.iter().filter_map(|place| {
        Some(LogRange { node: name(place)?, after: place.seq, last: place.last })
    });
    Ok((records, at.collect()))
}

/// The first records that fit into so many bytes, one at least: how many, and their bytes.
fn cut(records: &[Record], most: usize) -> (usize, Vec<u8>) {
    let (mut kept, mut out) = (0, Vec::new());
    for record in records {
        let length = out.len();
        put_record(&mut out, record);
        if out.len() > most && kept > 0 {
            out.truncate(length);
            break;
        }
        kept += 1;
    }
    (kept, out)
}

fn known(filter: FilterSent) -> Result<Filter, NoAnswer> {
    filter.filter().ok_or(NoAnswer::Question)
}

fn read_id(text: Option<String>) -> Result<Option<Id>, NoAnswer> {
    text.map(|text| Id::parse(&text).ok_or(NoAnswer::Question)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::codec;
    use crate::activity::record::Hash;
    use crate::activity::record_wire::read_records;
    use crate::fleet::examples::ExampleLog;

    fn records(count: u64) -> Vec<Record> {
        let mut log = ExampleLog::new(1);
        let rows = log.records(count);
        let record = |row: crate::fleet::record_rows::RecordRow<'_>| {
            let (head, body) = codec::split_canonical(row.canonical).unwrap();
            let prev = Hash([0; 32]);
            Record::decode(log.log, row.seq, prev, row.hash, head, Some(body)).unwrap()
        };
        rows.iter().map(record).collect()
    }

    #[test]
    fn what_does_not_fit_is_left_for_the_next_page_and_one_record_always_comes() {
        let all = records(10);
        let (_, one) = cut(&all[..1], usize::MAX);
        for (most, kept) in [(0, 1), (one.len(), 1), (usize::MAX, 10)] {
            let (count, bytes) = cut(&all, most);
            assert_eq!((count, read_records(&bytes).unwrap()), (kept, all[..kept].to_vec()));
        }
        let (_, three) = cut(&all[..3], usize::MAX);
        for most in [three.len(), three.len() + 1] {
            let (count, bytes) = cut(&all, most);
            assert_eq!((count, bytes), (3, three.clone()));
        }
        assert_eq!(cut(&all, three.len() - 1).0, 2);
        assert_eq!(cut(&[], 0), (0, Vec::new()));
    }
}
