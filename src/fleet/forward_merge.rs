//! Several streams of records, each in the order of ids, made into one: pure. Nothing is given before every stream that has not
//! ended has shown its next record.

use std::collections::VecDeque;

use crate::activity::{Id, Record};

#[derive(Debug, Default)]
struct ForwardStream {
    ready: VecDeque<Record>,
    over: bool,
}

/// Streams that are made into one.
#[derive(Debug)]
pub struct ForwardMerge {
    streams: Vec<ForwardStream>,
    last: Option<Id>,
}

impl ForwardMerge {
    /// Of so many streams.
    #[must_use]
    pub fn new(streams: usize) -> Self {
        Self { streams: (0..streams).map(|_| ForwardStream::default()).collect(), last: None }
    }

    /// The streams that have to give something, or end, before there is more.
    #[must_use]
    pub fn hungry(&self) -> Vec<usize> {
        let waits = |stream: &ForwardStream| !stream.over && stream.ready.is_empty();
        self.streams.iter().enumerate().filter(|(_, it)| waits(it)).map(|(at, _)| at).collect()
    }

    /// What a stream gives next; nothing more if it is `over`.
    pub fn feed(&mut self, stream: usize, records: Vec<Record>, over: bool) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.ready.extend(records);
            stream.over |= over;
        }
    }

    /// The next records in order, each once; at most so many.
    pub fn take(&mut self, most: usize) -> Vec<Record> {
        let mut taken = Vec::new();
        while taken.len() < most {
            if self.streams.iter().any(|it| !it.over && it.ready.is_empty()) {
                break;
            }
            let first = |it: &&mut ForwardStream| it.ready.front().map(|record| record.id);
            let next = self.streams.iter_mut().filter(|it| !it.ready.is_empty()).min_by_key(first);
            let Some(record) = next.and_then(|stream| stream.ready.pop_front()) else { break };
            if self.last.is_none_or(|last| record.id > last) {
                self.last = Some(record.id);
                taken.push(record);
            }
        }
        taken
    }

    /// Whether nothing more comes.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.streams.iter().all(|stream| stream.over && stream.ready.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::activity::codec::{self, PayloadRef};
    use crate::activity::record::{Hash, HeadRef, NodeId, Source, Status, Type};

    fn record(ms: u64, log: u8) -> Record {
        let head = HeadRef {
            stored_ms: ms,
            kind: Type::ToolCall,
            source: Source::Mcp,
            principal: "",
            status: Status::Success,
            operation: None,
            server: "",
            tool: "",
            error: "",
            started: 0,
            duration_us: 0,
            overhead_us: 0,
            response_bytes: 0,
            session_id: "",
            request_id: "",
            parent: None,
            intent: PayloadRef::default(),
            variant: "",
            client_name: "",
        };
        let mut bytes = Vec::new();
        codec::encode_head(&head, &mut bytes);
        let hash = Hash([0; 32]);
        Record::decode(NodeId([log; 16]), ms, hash, hash, &bytes, None).unwrap()
    }

    fn of(log: u8, times: &[u64]) -> Vec<Record> {
        times.iter().map(|ms| record(*ms, log)).collect()
    }

    fn ids(records: &[Record]) -> Vec<(u64, u8)> {
        records.iter().map(|record| (record.seq, record.node.0[0])).collect()
    }

    #[test]
    fn nothing_comes_before_each_stream_has_shown_its_next() {
        let mut merge = ForwardMerge::new(3);
        assert_eq!(merge.hungry(), [0, 1, 2]);
        merge.feed(0, of(1, &[1, 4]), false);
        merge.feed(1, of(2, &[2, 4]), true);
        assert!(merge.take(10).is_empty());
        merge.feed(2, Vec::new(), true);
        // Of a tie the log decides, as ids do; the first stream may go on with 5.
        assert_eq!(ids(&merge.take(10)), [(1, 1), (2, 2), (4, 1)]);
        assert_eq!(merge.hungry(), [0]);
        assert!(!merge.is_over());
        merge.feed(0, of(1, &[5]), true);
        assert_eq!(ids(&merge.take(1)), [(4, 2)]);
        assert_eq!(ids(&merge.take(10)), [(5, 1)]);
        assert!(merge.is_over() && merge.hungry().is_empty());
    }

    #[test]
    fn what_two_streams_have_comes_once() {
        let mut merge = ForwardMerge::new(2);
        merge.feed(0, of(1, &[1, 2, 3]), true);
        merge.feed(1, of(1, &[2, 3, 9]), true);
        assert_eq!(ids(&merge.take(2)), [(1, 1), (2, 1)]);
        assert_eq!(ids(&merge.take(9)), [(3, 1), (9, 1)]);
    }

    proptest! {
        #[test]
        fn all_comes_once_and_in_order_however_it_is_cut(
            logs in prop::collection::vec(prop::collection::btree_set(0_u64..60, 0..30), 1..5),
            step in 1_usize..7,
            most in 1_usize..9,
        ) {
            let mut parts: Vec<VecDeque<Record>> = (1..)
                .zip(&logs)
                .map(|(log, times)| times.iter().map(|ms| record(*ms, log)).collect())
                .collect();
            let mut expected: Vec<Record> = parts.iter().flatten().cloned().collect();
            expected.sort_by_key(|record| record.id);
            let (mut merge, mut found) = (ForwardMerge::new(parts.len()), Vec::new());
            while !merge.is_over() {
                for at in merge.hungry() {
                    let length = parts[at].len();
                    let part: Vec<_> = parts[at].drain(..step.min(length)).collect();
                    merge.feed(at, part, parts[at].is_empty());
                }
                found.extend(merge.take(most));
            }
            prop_assert_eq!(ids(&found), ids(&expected));
        }
    }
}
