//! What a node answers to another that asks for records: of its own log and of its copies, and of no third node. Blocks.

use std::collections::BTreeMap;

use thiserror::Error;

use super::fleet_logs::{FleetLogs, RangedLogs};
use super::record_questions::{
    AnswerHead, FilterSent, LogRange, MAX_ASKED_BYTES, RecordQuestion, period_named,
};
use crate::activity::merged::{ForwardPlace, MergedView};
use crate::activity::record_wire::put_record;
use crate::activity::stats::{BUCKET_US, Stats};
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
        RecordQuestion::List {
            ranges,
            filter,
            limit,
            before,
            payloads,
            metadata,
            count,
            bytes,
        } => {
            let (filter, before) = (known(filter)?, read_id(before)?);
            let from = before.map_or(From::Newest, From::After);
            let payloads = match (payloads, metadata) {
                (true, _) => Payloads::Include,
                (false, true) => Payloads::Exclude,
                (false, false) => Payloads::HeadsOnly,
            };
            let RangedLogs { view, removed } = logs.ranged(&ranges)?;
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
            let mut out =
                AnswerHead { next, total, removed, ..AnswerHead::default() }.with_records([]);
            out.extend(body);
            Ok(out)
        }
        RecordQuestion::Get { ranges, id } => {
            let id = Id::parse(&id).ok_or(NoAnswer::Question)?;
            let RangedLogs { view, removed } = logs.ranged(&ranges)?;
            let found = view.get(id).map_err(QueryError::Store)?;
            Ok(AnswerHead { removed, ..AnswerHead::default() }.with_records(&found))
        }
        RecordQuestion::Summary { ranges, period, now } => {
            let period = period_named(&period).ok_or(NoAnswer::Question)?;
            let (first, mut steps) = (period.first_bucket(now), BTreeMap::<u64, Stats>::new());
            if now / BUCKET_US < first {
                return Err(NoAnswer::Question);
            }
            let RangedLogs { view, removed } = logs.ranged(&ranges)?;
            for view in view.views() {
                let add = |bucket: u64, part: &Stats| {
                    // All of a step are one.
                    let step = bucket.saturating_sub(first) / period.step_buckets();
                    let begin = first + step * period.step_buckets();
                    steps.entry(begin).or_default().merge(part);
                };
                view.buckets(first, now, add).map_err(QueryError::Store)?;
            }
            let steps = steps.iter().map(|(bucket, stats)| (*bucket, stats));
            Ok(AnswerHead { removed, ..AnswerHead::default() }.with_buckets(steps))
        }
        RecordQuestion::Forward { ranges, filter, after, limit, bytes } => {
            let (filter, after) = (known(filter)?, read_id(after)?);
            let RangedLogs { view, removed } = logs.ranged(&ranges)?;
            let limit =
                PortionLimit { records: limit.max(1), bytes: bytes.clamp(1, MAX_ASKED_BYTES) };
            let (records, ranges) = forward(&view, after, &filter, limit)?;
            Ok(AnswerHead { ranges, removed, ..AnswerHead::default() }.with_records(&records))
        }
    }
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
    use crate::activity::record_wire::read_records;
    use crate::activity::{Activity, Config, Draft, Retention, Source, Status, Type};
    use crate::fleet::examples::ExampleLog;

    #[test]
    fn what_retention_has_taken_before_an_index_has_read_it_is_told_with_every_answer() {
        let folder = tempfile::tempdir().unwrap();
        let (activity, writer) = Activity::open(folder.path(), Config::default()).unwrap();
        activity.set_node_name("a");
        for _ in 0..20 {
            activity.note(Draft::new(Type::ToolCall, Source::Mcp, Status::Success));
        }
        activity.flush().unwrap();
        activity.keep_for(Retention { days: 0, max_records: 5, max_size_mb: 0 });
        activity.prune().unwrap();
        let logs = FleetLogs::new(activity, None, None);
        let first = logs.activity().stored().unwrap().first();
        assert!(first > 12, "{first}");
        let filter = FilterSent::default;
        let now = 1_800_000_000_000_000;
        for (after, last, removed) in [
            (3, u64::MAX, Some((4, first - 1))),
            (3, 10, Some((4, 10))),
            (first - 2, u64::MAX, Some((first - 1, first - 1))),
            (first - 1, u64::MAX, None),
            // Of a log as a whole it is what its operator wants.
            (0, u64::MAX, None),
        ] {
            let ranges = || vec![LogRange { node: "a".into(), after, last }];
            let (limit, bytes) = (10, 1 << 20);
            let id = Id::new(1, 4, logs.activity().stored().unwrap().node()).to_string();
            for question in [
                RecordQuestion::List {
                    ranges: ranges(),
                    filter: filter(),
                    limit,
                    before: None,
                    payloads: false,
                    metadata: false,
                    count: false,
                    bytes,
                },
                RecordQuestion::Get { ranges: ranges(), id },
                RecordQuestion::Summary { ranges: ranges(), period: "24h".into(), now },
                RecordQuestion::Forward {
                    ranges: ranges(),
                    filter: filter(),
                    after: None,
                    limit,
                    bytes,
                },
            ] {
                let bytes = answer(&logs, question.clone()).unwrap();
                let (head, _) = AnswerHead::read(&bytes).unwrap();
                assert_eq!(head.removed, removed, "{question:?}");
            }
        }
        writer.close().unwrap();
    }

    #[test]
    fn what_does_not_fit_is_left_for_the_next_page_and_one_record_always_comes() {
        let all = ExampleLog::new(1).decoded(10);
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
