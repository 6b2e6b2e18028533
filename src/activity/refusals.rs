//! Aggregation of repeated refusals, which are counted instead of recorded individually (ACT-10). Sans-I/O: the caller
//! supplies a monotonic clock.
//!
//! The first refusal of its kind is recorded immediately. Identical ones within the next second become one record with
//! their number (`repeated`) and the time of the last one (`until`); while they continue, there is one such record per
//! second. Refusals beyond their principal's rate or log share are counted for the principal as a whole, every ten
//! seconds.
//!
//! ```text
//! entry ─▶ first of its kind ─▶ record
//!    └──▶ identical ─▶ count ─ a batch is written ─▶ mark ─ window ends, or a query ─▶ record, no mark
//! ```
//!
//! Two refusals are identical if only their request, time and trace differ: principal, session, client,
//! server, tool, arguments, the kept part of `_meta` and intent, reason and decisions are the same. Only the request
//! ids and exact times are lost. Until it is recorded, a count is stored as a mark, like a call in flight
//! (`in_flight`). The mark is written with the batch in which the count grew, so that counts are as durable as records.

use std::collections::{BTreeMap, HashMap};

use mcpproxy_json::members::member;

use super::record::{
    Decision, Draft, Entry, MAX_METADATA_BYTES, META, Policy, REPEATED, Raw, Recording, Status,
    Text, Verdict, decision_metadata, with_member,
};
use super::show::Timestamp;

/// Window in which identical refusals are counted together.
const IDENTICAL_MS: u64 = 1000;
/// Window in which refusals beyond the rate are counted together.
const COUNTED_MS: u64 = 10_000;
/// Maximum number of groups of identical refusals; further refusals are recorded individually. The same number of
/// groups is available for principals beyond their rate; all other principals share one group without a name.
const MAX_GROUPS: usize = 1024;
/// Maximum size of the entries held by groups, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Maximum number of tools named in a record of refusals beyond the rate.
const MAX_TOOLS: usize = 16;
/// Maximum length of a tool's name in a record of refusals beyond the rate.
const MAX_TOOL_BYTES: usize = 128;
/// Space reserved for the count in a record's metadata.
const COUNT_BYTES: usize = 128;

/// Error text of the record of refusals beyond the rate.
const BEYOND_RATE: &str =
    "refused beyond the limits of the principal: counted, not recorded one by one";

/// Key of a group: a hash of the fields that its refusals share.
type GroupKey = [u8; 32];
/// Key of the group for principals that exceed the maximum number of groups.
const OTHERS: GroupKey = [0; 32];

/// The current groups of refusals.
#[derive(Debug, Default)]
pub(super) struct RefusalGroups {
    groups: HashMap<GroupKey, Group>,
    /// Lower bound of the ends of all windows.
    next_end: u64,
    /// Size of the held entries.
    bytes: usize,
}

#[derive(Debug)]
struct Group {
    recording: Recording,
    /// End of the window, by the monotonic clock.
    until: u64,
    /// Refusals without a record.
    repeats: Option<Repeats>,
}

#[derive(Debug)]
struct Repeats {
    /// The first refusal without a record.
    entry: Box<Entry>,
    count: u64,
    /// Start of the last refusal, in microseconds since 1970.
    last: u64,
    /// Calls per tool; only for refusals beyond the rate.
    tools: BTreeMap<Box<str>, u64>,
    /// Count stored in the mark, and the mark's ticket.
    marked: u64,
    ticket: Option<u64>,
}

/// A group of refusals whose count is to be recorded.
#[derive(Debug)]
pub(super) struct ClosedGroup {
    pub(super) entry: Entry,
    /// Ticket of the mark to be removed.
    pub(super) ticket: Option<u64>,
}

impl RefusalGroups {
    /// Counts a refusal, or returns it if it has to be recorded individually.
    pub(super) fn count(&mut self, mut entry: Box<Entry>, now_ms: u64) -> Option<Box<Entry>> {
        let recording = entry.recording;
        let key = match recording {
            Recording::Single => return Some(entry),
            Recording::Refusal => identity(&entry),
            Recording::Counted => {
                let key = principal_key(&entry.draft);
                let is_new = !self.groups.contains_key(&key);
                match is_new && self.groups.len() >= 2 * MAX_GROUPS {
                    false => key,
                    true => {
                        entry.draft.set(Text::Principal, "");
                        OTHERS
                    }
                }
            }
        };
        let has_room = recording == Recording::Counted || self.groups.len() < MAX_GROUPS;
        match self.groups.get_mut(&key) {
            Some(group) => {
                if let Some(repeats) = &mut group.repeats {
                    repeats.add(&entry.draft, recording);
                    return None;
                }
                if self.bytes + entry.draft.bytes() > MAX_BYTES {
                    return Some(entry);
                }
                let repeats = Repeats::begin(entry, recording);
                self.bytes += repeats.entry.draft.bytes();
                group.repeats = Some(repeats);
                None
            }
            None if !has_room => Some(entry),
            None => {
                let until = now_ms.saturating_add(recording.window_ms());
                let (repeats, single) = match recording {
                    Recording::Counted => (Some(Repeats::begin(entry, recording)), None),
                    Recording::Single | Recording::Refusal => (None, Some(entry)),
                };
                self.bytes += repeats.as_ref().map_or(0, |it| it.entry.draft.bytes());
                self.next_end =
                    if self.groups.is_empty() { until } else { self.next_end.min(until) };
                self.groups.insert(key, Group { recording, until, repeats });
                single
            }
        }
    }

    /// Closes expired windows and returns their counts.
    pub(super) fn close_due(&mut self, now_ms: u64) -> Vec<ClosedGroup> {
        if self.groups.is_empty() || now_ms < self.next_end {
            return Vec::new();
        }
        let mut closed = Vec::new();
        self.groups.retain(|_, group| {
            if now_ms < group.until {
                return true;
            }
            let Some(repeats) = group.repeats.take() else { return false };
            closed.push(repeats.close());
            // If the refusals continue, the group keeps its window, so that the next refusal does not count as a first
            // one.
            group.until = now_ms.saturating_add(group.recording.window_ms());
            group.recording == Recording::Refusal
        });
        self.finish_closing(closed)
    }

    /// Returns all counts, for a query; the windows continue.
    pub(super) fn close_all(&mut self) -> Vec<ClosedGroup> {
        let mut closed = Vec::new();
        self.groups.retain(|_, group| {
            closed.extend(group.repeats.take().map(Repeats::close));
            group.recording == Recording::Refusal
        });
        self.finish_closing(closed)
    }

    /// Updates the totals after groups were closed, and sorts the closed groups by age.
    fn finish_closing(&mut self, mut closed: Vec<ClosedGroup>) -> Vec<ClosedGroup> {
        let left = self.groups.values().filter_map(|group| group.repeats.as_ref());
        self.bytes = left.map(|repeats| repeats.entry.draft.bytes()).sum();
        self.next_end = self.groups.values().map(|group| group.until).min().unwrap_or_default();
        closed.sort_by_key(|group| group.entry.draft.started);
        closed
    }

    /// Whether there are counts without a record.
    pub(super) fn is_open(&self) -> bool {
        self.groups.values().any(|group| group.repeats.is_some())
    }

    /// Number of refusals that are only in memory.
    pub(super) fn unmarked(&self) -> u64 {
        let repeats = self.groups.values().filter_map(|group| group.repeats.as_ref());
        repeats.map(|repeats| repeats.count - repeats.marked).sum()
    }

    /// Marks each count that has grown since its last mark. `put` receives the ticket, taken from
    /// `next_ticket` for a new count, and the current entry.
    pub(super) fn mark(&mut self, next_ticket: &mut u64, mut put: impl FnMut(u64, &Entry)) {
        let repeats = self.groups.values_mut().filter_map(|group| group.repeats.as_mut());
        for repeats in repeats.filter(|repeats| repeats.marked < repeats.count) {
            let ticket = *repeats.ticket.get_or_insert_with(|| {
                *next_ticket += 1;
                *next_ticket - 1
            });
            repeats.marked = repeats.count;
            put(ticket, &repeats.record());
        }
    }
}

impl Recording {
    fn window_ms(self) -> u64 {
        match self {
            Self::Single | Self::Refusal => IDENTICAL_MS,
            Self::Counted => COUNTED_MS,
        }
    }
}

impl Repeats {
    fn begin(entry: Box<Entry>, recording: Recording) -> Self {
        let last = entry.draft.started;
        let mut tools = BTreeMap::new();
        let entry = match recording {
            Recording::Single | Recording::Refusal => entry,
            Recording::Counted => {
                bump_tool(&mut tools, &entry.draft);
                Box::new(beyond_rate(&entry.draft))
            }
        };
        Self { entry, count: 1, last, tools, marked: 0, ticket: None }
    }

    fn add(&mut self, draft: &Draft, recording: Recording) {
        self.count = self.count.saturating_add(1);
        self.last = self.last.max(draft.started);
        if recording == Recording::Counted {
            bump_tool(&mut self.tools, draft);
        }
    }

    /// Builds the entry that reports all of the group's unrecorded refusals.
    fn record(&self) -> Entry {
        let mut entry = (*self.entry).clone();
        entry.recording = Recording::Single;
        if self.count < 2 && self.tools.is_empty() {
            return entry;
        }
        let metadata = entry.draft.payload(Raw::Metadata).bytes;
        let is_full = metadata.len() > MAX_METADATA_BYTES - COUNT_BYTES;
        let metadata = if is_full { &[][..] } else { metadata };
        let mut metadata = with_member(metadata, REPEATED, &self.count.to_string());
        let until = format!("\"{}\"", Timestamp(self.last));
        metadata = with_member(&metadata, "until", &until);
        if !self.tools.is_empty() {
            metadata = with_member(&metadata, "tools", &serde_json::json!(self.tools).to_string());
        }
        entry.draft.keep(Raw::Metadata, &metadata, MAX_METADATA_BYTES);
        entry.draft.repeated = self.count;
        entry.decisions.iter_mut().for_each(|decision| decision.repeated = self.count);
        entry
    }

    fn close(self) -> ClosedGroup {
        ClosedGroup { entry: self.record(), ticket: self.ticket }
    }
}

/// Builds the entry for refusals beyond the rate; `first` is the first refusal.
fn beyond_rate(first: &Draft) -> Entry {
    let mut draft = Draft::new(first.kind, first.source, Status::Rejected);
    draft.started = first.started;
    draft.set(Text::Principal, first.text(Text::Principal));
    draft.set(Text::Error, BEYOND_RATE);
    let decision = Decision::new(Verdict::Blocked, Policy::Limit, BEYOND_RATE);
    Entry { decisions: vec![decision], ..draft.into() }
}

/// Counts a call of the draft's tool, up to [`MAX_TOOLS`] tools.
fn bump_tool(tools: &mut BTreeMap<Box<str>, u64>, draft: &Draft) {
    let (server, tool) = (draft.text(Text::Server), draft.text(Text::Tool));
    if server.is_empty() && tool.is_empty() {
        return;
    }
    let separator = if server.is_empty() { "" } else { ":" };
    let mut name = format!("{server}{separator}{tool}");
    name.truncate(name.floor_char_boundary(MAX_TOOL_BYTES));
    if let Some(count) = tools.get_mut(&*name) {
        *count += 1;
    } else if tools.len() < MAX_TOOLS {
        tools.insert(name.into(), 1);
    }
}

/// Group key of all refusals of a principal beyond its rate, per type and interface.
fn principal_key(draft: &Draft) -> GroupKey {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[0, draft.kind.code(), draft.source.code()]);
    hasher.update(draft.text(Text::Principal).as_bytes());
    *hasher.finalize().as_bytes()
}

/// Group key of identical refusals.
fn identity(Entry { draft, decisions, .. }: &Entry) -> GroupKey {
    const TEXTS: [Text; 6] =
        [Text::Principal, Text::Server, Text::Tool, Text::SessionId, Text::ClientName, Text::Error];
    let operation = draft.operation.map_or(0, |operation| operation.code());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[1, draft.kind.code(), draft.source.code(), draft.status.code(), operation]);
    let mut part = |bytes: &[u8], total: u64| {
        hasher.update(&(bytes.len() as u64).to_be_bytes()).update(&total.to_be_bytes());
        hasher.update(bytes);
    };
    part(draft.variant.as_bytes(), 0);
    TEXTS.into_iter().for_each(|text| part(draft.text(text).as_bytes(), 0));
    for payload in [Raw::Arguments, Raw::Intent].map(|which| draft.payload(which)) {
        part(payload.bytes, payload.total);
    }
    let metadata = std::str::from_utf8(draft.payload(Raw::Metadata).bytes).unwrap_or_default();
    part(member(metadata, META).unwrap_or_default().as_bytes(), 0);
    part(draft.whole_arguments.as_deref().map_or(&[][..], |hash| hash.as_slice()), 0);
    decisions.iter().for_each(|decision| part(&decision_metadata(decision), 0));
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Source, Type};

    const NOW: u64 = 1_000_000;

    /// A refusal of `principal` for `tool` with these arguments.
    fn refusal(principal: &str, tool: &str, arguments: &str, request: u64) -> Box<Entry> {
        let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Rejected);
        draft.set(Text::Principal, principal);
        draft.set(Text::Server, "s");
        draft.set(Text::Tool, tool);
        draft.set(Text::Error, "not found");
        draft.set(Text::RequestId, &request.to_string());
        draft.started = 1_767_225_600_000_000 + request;
        draft.keep(Raw::Arguments, arguments.as_bytes(), 4096);
        let decision = Decision::new(Verdict::Blocked, Policy::Rules, "no");
        let recording = Recording::Refusal;
        Box::new(Entry { decisions: vec![decision], recording, ..draft.into() })
    }

    fn counted(principal: &str, tool: &str) -> Box<Entry> {
        Box::new(Entry { recording: Recording::Counted, ..*refusal(principal, tool, "{}", 0) })
    }

    fn metadata(entry: &Entry) -> serde_json::Value {
        let bytes = entry.draft.payload(Raw::Metadata).bytes;
        if bytes.is_empty() {
            serde_json::Value::Null
        } else {
            serde_json::from_slice(bytes).unwrap()
        }
    }

    #[test]
    fn identical_refusals_within_a_second_become_one_counted_record() {
        let mut groups = RefusalGroups::default();
        assert!(groups.count(refusal("a", "t", "{}", 0), NOW).is_some(), "the first is recorded");
        for request in 1..=999 {
            assert!(groups.count(refusal("a", "t", "{}", request), NOW + request).is_none());
        }
        assert!(groups.close_due(NOW + IDENTICAL_MS - 1).is_empty());
        let closed = groups.close_due(NOW + IDENTICAL_MS);
        let [ClosedGroup { entry, ticket: None }] = &closed[..] else { panic!("{closed:?}") };
        let counted = metadata(entry);
        assert_eq!(
            (&counted["repeated"], &counted["until"]),
            (&999.into(), &"2026-01-01T00:00:00.000Z".into())
        );
        assert_eq!(entry.draft.text(Text::RequestId), "1");
        assert_eq!((entry.decisions[0].repeated, entry.recording), (999, Recording::Single));
        // While the refusals continue, there is one record per second. Only after a pause is a refusal recorded as a
        // first one.
        assert!(groups.count(refusal("a", "t", "{}", 1000), NOW + 1500).is_none());
        let closed = groups.close_due(NOW + 2 * IDENTICAL_MS);
        assert_eq!((closed.len(), metadata(&closed[0].entry)), (1, serde_json::Value::Null));
        assert!(groups.close_due(NOW + 3 * IDENTICAL_MS).is_empty());
        assert!(groups.groups.is_empty() && groups.bytes == 0);
        assert!(groups.count(refusal("a", "t", "{}", 1001), NOW + 3001).is_some());
    }

    #[test]
    fn refusals_that_differ_in_any_kept_field_are_not_identical() {
        let change = |change: fn(&mut Entry)| {
            let mut entry = refusal("a", "t", "{}", 0);
            change(&mut entry);
            entry
        };
        let others = [
            change(|entry| entry.draft.set(Text::Principal, "b")),
            change(|entry| entry.draft.set(Text::Tool, "u")),
            change(|entry| entry.draft.set(Text::Server, "st")),
            change(|entry| entry.draft.set(Text::SessionId, "x")),
            change(|entry| entry.draft.set(Text::ClientName, "x")),
            change(|entry| entry.draft.set(Text::Error, "x")),
            change(|entry| entry.draft.keep(Raw::Arguments, b"{ }", 4096)),
            change(|entry| entry.draft.keep(Raw::Arguments, b"{} and more", 2)),
            change(|entry| entry.draft.keep(Raw::Intent, b"{}", 4096)),
            change(|entry| entry.draft.keep(Raw::Metadata, br#"{"_meta":{"a":1}}"#, 4096)),
            change(|entry| entry.draft.keep(Raw::Metadata, br#"{"_meta":{"a":2}}"#, 4096)),
            change(|entry| entry.draft.whole_arguments = Some(Box::new([1; 32]))),
            change(|entry| entry.draft.whole_arguments = Some(Box::new([2; 32]))),
            change(|entry| entry.draft.status = Status::Error),
            change(|entry| entry.draft.kind = Type::ResourceRead),
            change(|entry| entry.draft.source = Source::Api),
            change(|entry| entry.draft.variant = "call_tool_read"),
            change(|entry| entry.decisions[0].reason = "x".into()),
            change(|entry| entry.decisions.clear()),
        ];
        let mut groups = RefusalGroups::default();
        assert!(groups.count(refusal("a", "t", "{}", 0), NOW).is_some());
        let count = others.len();
        for other in others {
            assert!(groups.count(other, NOW).is_some());
        }
        assert_eq!(groups.groups.len(), 1 + count);
        assert!(groups.count(change(|entry| entry.draft.duration_us = 7), NOW).is_none());
        let of_the_request = |entry: &mut Entry| {
            entry.draft.keep(Raw::Metadata, br#"{"trace_id":"7","_meta":{"a":2}}"#, 4096);
        };
        assert!(groups.count(change(of_the_request), NOW).is_none());
    }

    #[test]
    fn refusals_beyond_the_rate_are_counted_per_principal_with_tools() {
        let mut groups = RefusalGroups::default();
        for number in 0..100 {
            assert!(groups.count(counted("a", &format!("t{}", number % 40)), NOW).is_none());
            assert!(groups.count(counted("b", "t"), NOW).is_none());
        }
        assert!(groups.close_due(NOW + COUNTED_MS - 1).is_empty());
        let mut closed = groups.close_due(NOW + COUNTED_MS);
        closed.sort_by_key(|group| group.entry.draft.text(Text::Principal).to_owned());
        let [a, b] = &closed[..] else { panic!("{closed:?}") };
        assert_eq!(metadata(&a.entry)["repeated"], 100);
        assert_eq!(metadata(&a.entry)["tools"].as_object().unwrap().len(), MAX_TOOLS);
        assert_eq!(metadata(&b.entry)["tools"], serde_json::json!({"s:t": 100}));
        let draft = &b.entry.draft;
        assert_eq!((draft.text(Text::Principal), draft.text(Text::Tool)), ("b", ""));
        assert_eq!((draft.text(Text::Error), draft.status), (BEYOND_RATE, Status::Rejected));
        assert!(!groups.is_open());
    }

    #[test]
    fn grown_refusal_count_is_marked_again_under_the_same_ticket() {
        let mut groups = RefusalGroups::default();
        let mut next_ticket = 7;
        let mut marks = |groups: &mut RefusalGroups| {
            let mut put = Vec::new();
            groups.mark(&mut next_ticket, |ticket, entry| put.push((ticket, metadata(entry))));
            put
        };
        groups.count(refusal("a", "t", "{}", 0), NOW);
        assert_eq!(marks(&mut groups), []);
        groups.count(refusal("a", "t", "{}", 1), NOW);
        assert_eq!(
            (groups.unmarked(), marks(&mut groups)),
            (1, vec![(7, serde_json::Value::Null)])
        );
        assert_eq!((groups.unmarked(), marks(&mut groups)), (0, vec![]));
        groups.count(refusal("a", "t", "{}", 2), NOW);
        groups.count(counted("b", "t"), NOW);
        let mut put = marks(&mut groups);
        put.sort_by_key(|(ticket, _)| *ticket);
        let counts = put.iter().map(|(ticket, metadata)| (*ticket, metadata["repeated"].as_u64()));
        assert_eq!(counts.collect::<Vec<_>>(), [(7, Some(2)), (8, Some(1))]);
        let tickets = groups.close_all().into_iter().map(|group| group.ticket);
        assert_eq!(tickets.collect::<std::collections::BTreeSet<_>>(), [Some(7), Some(8)].into());
        // The window of the identical refusals continues.
        assert!(groups.count(refusal("a", "t", "{}", 3), NOW + 1).is_none());
    }

    #[test]
    fn groups_are_bounded_and_excess_refusals_are_recorded_individually() {
        let mut groups = RefusalGroups::default();
        for number in 0..2 * MAX_GROUPS as u64 {
            let tool = number.to_string();
            assert!(groups.count(refusal("a", &tool, "{}", 0), NOW).is_some());
            let again = groups.count(refusal("a", &tool, "{}", 0), NOW);
            assert_eq!(again.is_none(), number < MAX_GROUPS as u64);
        }
        // A principal beyond its rate is always counted, but without its name if there are too many principals.
        for number in 0..2 * MAX_GROUPS {
            assert!(groups.count(counted(&format!("p{number}"), "t"), NOW).is_none());
        }
        assert_eq!(groups.groups.len(), 2 * MAX_GROUPS + 1);
        let closed = groups.close_all();
        let nameless = closed.iter().find(|it| it.entry.draft.text(Text::Principal).is_empty());
        assert_eq!(metadata(&nameless.unwrap().entry)["repeated"], MAX_GROUPS);

        let large = "x".repeat(MAX_BYTES / 4);
        let mut groups = RefusalGroups::default();
        let take = |groups: &mut RefusalGroups, tool: &str| {
            let mut entry = refusal("a", tool, "", 0);
            entry.draft.keep(Raw::Arguments, large.as_bytes(), MAX_BYTES);
            groups.count(entry, NOW).is_none()
        };
        let kept: Vec<bool> = (0..5)
            .map(|tool: u8| {
                assert!(!take(&mut groups, &tool.to_string()));
                take(&mut groups, &tool.to_string())
            })
            .collect();
        assert_eq!(kept, [true, true, true, false, false]);
    }

    #[test]
    fn oversized_metadata_is_replaced_by_the_count() {
        let mut groups = RefusalGroups::default();
        let full = format!("{{\"x\":\"{}\"}}", "y".repeat(MAX_METADATA_BYTES - 20));
        for _ in 0..3 {
            let mut entry = refusal("a", "t", "{}", 0);
            entry.draft.keep(Raw::Metadata, full.as_bytes(), MAX_METADATA_BYTES);
            groups.count(entry, NOW);
        }
        assert_eq!(metadata(&groups.close_all()[0].entry)["repeated"], 2);
    }
}
