//! Calls by tool, call tool and outcome, for exporters: bounded in tools and in series.
//!
//! Only tools that were found are counted by name: a name that an agent made up takes no room. Each worker counts in a
//! table of its own, under a lock that nobody else takes but who reads the sums, and that one for moments
//! (`PORTION`): the worker may be about to count a call.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::counted::Outcome;
use crate::tool::server_id::ServerId;

/// Tools of one worker that are counted by name; further ones are counted together ([`OTHER`]).
const MAX_TOOLS: usize = 16 * 1024;
/// Tools whose counts are copied while a worker that has to count would wait.
const PORTION: usize = 256;
/// The name under which those are counted that have no place of their own, with those of a tool that has this name.
pub const OTHER: &str = "other";
/// By what a call came: the call tools, a tool's own name, or a request that calls no tool.
const VARIANTS: [&str; 5] =
    ["call_tool_read", "call_tool_write", "call_tool_destructive", "direct", ""];

/// Calls of one tool, by variant and outcome.
type Counts = [[u64; Outcome::ALL.len()]; VARIANTS.len()];

/// The calls of one worker.
#[derive(Debug, Default)]
pub(super) struct ToolCalls(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// In the order in which they came, so that they can be read in portions.
    rows: Vec<Row>,
    /// Where in `rows` each tool is.
    places: HashMap<ServerId, HashMap<Arc<str>, usize>>,
}

/// The calls of one tool.
#[derive(Clone, Debug)]
struct Row {
    server: ServerId,
    tool: Arc<str>,
    counts: Counts,
}

impl Table {
    fn counts(&mut self, server: ServerId, tool: &str) -> Option<&mut Counts> {
        let places = self.places.entry(server).or_default();
        let mut place = places.get(tool).copied();
        let mut tool = tool;
        if place.is_none() && self.rows.len() >= MAX_TOOLS {
            tool = OTHER;
            place = places.get(tool).copied();
        }
        let at = place.unwrap_or_else(|| {
            let (at, tool) = (self.rows.len(), Arc::<str>::from(tool));
            places.insert(Arc::clone(&tool), at);
            self.rows.push(Row { server, tool, counts: Counts::default() });
            at
        });
        self.rows.get_mut(at).map(|row| &mut row.counts)
    }
}

impl ToolCalls {
    /// A call of a tool that there is has ended. A variant that is none of ours counts as none.
    pub(super) fn ended(&self, server: ServerId, tool: &str, variant: &str, outcome: Outcome) {
        let mut table = self.0.lock();
        let at = VARIANTS.iter().position(|it| *it == variant).unwrap_or(VARIANTS.len() - 1);
        let counts = table.counts(server, tool).and_then(|counts| counts.get_mut(at));
        if let Some(count) = counts.and_then(|counts| counts.get_mut(outcome as usize)) {
            *count += 1;
        }
    }

    /// What was counted until now, tool by tool. Calls that end meanwhile may count or not.
    fn read(&self, mut each: impl FnMut(&Row)) {
        let (mut from, mut portion) = (0, Vec::with_capacity(PORTION));
        loop {
            let table = self.0.lock();
            portion.extend(table.rows.iter().skip(from).take(PORTION).cloned());
            drop(table);
            if portion.is_empty() {
                return;
            }
            from += portion.len();
            portion.drain(..).for_each(|row| each(&row));
        }
    }
}

/// One series: the labels of a count.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Series {
    /// The server.
    pub server: ServerId,
    /// The tool, [`OTHER`], or a method of the protocol.
    pub tool: Box<str>,
    /// The call tool, `direct`, or empty.
    pub variant: &'static str,
    /// How the calls ended.
    pub outcome: Outcome,
}

/// The series that were told by name, so that one keeps its name as long as the process lives: a counter that moved
/// to another series would seem to fall.
#[derive(Debug, Default)]
pub(super) struct NamedSeries(HashSet<Series>);

impl NamedSeries {
    /// The sums of all workers: at most `most` series by name, first come, and the rest of each server under
    /// [`OTHER`].
    pub(super) fn sums(&mut self, workers: &[&ToolCalls], most: usize) -> BTreeMap<Series, u64> {
        let mut sums = BTreeMap::new();
        for worker in workers {
            worker.read(|row| {
                for (series, count) in named(row) {
                    *sums.entry(self.told(series, most)).or_default() += count;
                }
            });
        }
        sums
    }

    fn told(&mut self, mut series: Series, most: usize) -> Series {
        if !self.0.contains(&series) {
            if self.0.len() < most {
                self.0.insert(series.clone());
            } else {
                series.tool = OTHER.into();
            }
        }
        series
    }
}

/// The counts that are not zero, with their labels.
fn named(row: &Row) -> impl Iterator<Item = (Series, u64)> {
    VARIANTS.into_iter().zip(&row.counts).flat_map(move |(variant, outcomes)| {
        let counted = Outcome::ALL.into_iter().zip(outcomes).filter(|(_, count)| **count > 0);
        counted.map(move |(outcome, count)| {
            let (server, tool) = (row.server, Box::from(&*row.tool));
            (Series { server, tool, variant, outcome }, *count)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::server_id::ServerIds;

    fn shown(sums: &BTreeMap<Series, u64>) -> Vec<String> {
        sums.iter()
            .map(|(Series { server, tool, variant, outcome }, count)| {
                format!("{} {tool} {variant} {} {count}", server.index(), outcome.as_str())
            })
            .collect()
    }

    #[test]
    fn the_calls_of_all_workers_are_summed_by_tool_variant_and_outcome() {
        let mut ids = ServerIds::default();
        let [a, b] = ["a", "b"].map(|name| ids.assign(&name.into()));
        let workers = [ToolCalls::default(), ToolCalls::default()];
        for worker in &workers {
            worker.ended(a, "t", "call_tool_read", Outcome::Success);
            worker.ended(b, "t", "direct", Outcome::Error);
        }
        workers[1].ended(a, "t", "call_tool_read", Outcome::Rejected);
        workers[1].ended(a, "prompts/get", "of nobody", Outcome::Success);
        assert_eq!(
            shown(&NamedSeries::default().sums(&workers.each_ref(), 100)),
            [
                "0 prompts/get  success 1",
                "0 t call_tool_read success 2",
                "0 t call_tool_read rejected 1",
                "1 t direct error 2",
            ]
        );
    }

    #[test]
    fn past_the_bound_of_series_they_are_counted_together_and_none_falls() {
        let server = ServerIds::default().assign(&"s".into());
        let workers = [ToolCalls::default()];
        let mut named = NamedSeries::default();
        let mut before = BTreeMap::new();
        for round in 0..4_u64 {
            for tool in (0..=round * 3).rev() {
                workers[0].ended(server, &format!("t{tool}"), "direct", Outcome::Success);
            }
            let sums = named.sums(&workers.each_ref(), 3);
            assert!(sums.len() <= 4, "{sums:?}");
            let ended = (0..=round).map(|round| round * 3 + 1).sum::<u64>();
            assert_eq!(sums.values().sum::<u64>(), ended);
            for (series, count) in &before {
                assert!(sums.get(series) >= Some(count), "{series:?} fell");
            }
            before = sums;
        }
        assert!(before.keys().any(|series| &*series.tool == OTHER));
    }

    #[test]
    fn a_server_whose_tools_are_other_ones_all_the_time_takes_bounded_memory() {
        let server = ServerIds::default().assign(&"s".into());
        let worker = ToolCalls::default();
        for tool in 0..MAX_TOOLS + 1000 {
            worker.ended(server, &format!("t{tool}"), "", Outcome::Success);
        }
        let mut rows = Vec::new();
        worker.read(|row| rows.push(row.clone()));
        assert_eq!(rows.len(), MAX_TOOLS + 1);
        assert_eq!(
            (&*rows[MAX_TOOLS].tool, rows[MAX_TOOLS].counts[VARIANTS.len() - 1][0]),
            (OTHER, 1000)
        );
    }

    #[test]
    fn who_reads_the_counts_keeps_no_worker_from_counting() {
        let server = ServerIds::default().assign(&"s".into());
        let worker = ToolCalls::default();
        for tool in 0..PORTION * 2 + 1 {
            worker.ended(server, &format!("t{tool}"), "", Outcome::Success);
        }
        let mut seen = 0;
        worker.read(|_| {
            seen += 1;
            if seen == 1 {
                worker.ended(server, "late", "", Outcome::Success);
            }
            assert!(!worker.0.is_locked());
        });
        assert_eq!(seen, PORTION * 2 + 2);
    }
}
