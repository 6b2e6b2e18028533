//! Logs for the tests of this room.

use super::checkpoint::CheckpointHash;
use super::node_key::NodeKey;
use super::record_rows::{RecordCollector, RecordRow, RecordRows};
use super::segment::{self, SealedBy, SealedSegment};
use super::signed_note::VerifierKey;
use crate::activity::chained::ChainedRecord;
use crate::activity::codec::{self, HeadRef, PayloadRef};
use crate::activity::record::{Hash, Id, NodeId, Operation, Record, Source, Status, Type};

/// A log that grows.
#[derive(Clone)]
pub(super) struct ExampleLog {
    pub(super) log: NodeId,
    next: u64,
    head: Hash,
}

impl ExampleLog {
    pub(super) fn new(log: u8) -> Self {
        let log = NodeId([log; 16]);
        Self { log, next: 1, head: codec::genesis(log) }
    }

    /// The hash of the last record.
    pub(super) fn head(&self) -> Hash {
        self.head
    }

    /// The next records.
    pub(super) fn records(&mut self, count: u64) -> RecordRows {
        let mut rows = RecordCollector::new(self.log);
        for _ in 0..count {
            self.push(&mut rows, b"{\"a\":1}", b"an answer");
        }
        rows.finish()
    }

    /// The next records, as they are read, the oldest first.
    pub(super) fn decoded(&mut self, count: u64) -> Vec<Record> {
        let (mut prev, log) = (self.head, self.log);
        let rows = self.records(count);
        let record = |row: RecordRow<'_>| {
            let (head, body) = codec::split_canonical(row.canonical).unwrap();
            let before = std::mem::replace(&mut prev, row.hash);
            Record::decode(log, row.seq, before, row.hash, head, Some(body)).unwrap()
        };
        rows.iter().map(record).collect()
    }

    /// A hole: the next record has a higher number, and follows a hash that is not there.
    pub(super) fn skip(&mut self, by: u64) {
        self.next += by;
        self.head = Hash([self.next as u8; 32]);
    }

    pub(super) fn push(&mut self, rows: &mut RecordCollector, arguments: &[u8], response: &[u8]) {
        let seq = self.next;
        let text = format!("request-{seq}");
        let head = HeadRef {
            stored_ms: 1_767_225_600_000 + seq,
            kind: if seq.is_multiple_of(3) { Type::PolicyDecision } else { Type::ToolCall },
            source: Source::Mcp,
            principal: if seq.is_multiple_of(2) { "anonymous" } else { "token:ci" },
            status: Status::Success,
            operation: (seq.is_multiple_of(2)).then_some(Operation::Write),
            server: "github",
            tool: "create_issue",
            error: "",
            started: 1_767_225_600_000_000 + seq,
            duration_us: 12_304,
            overhead_us: 41,
            response_bytes: response.len() as u64 + 5,
            session_id: "session",
            request_id: &text,
            parent: (seq.is_multiple_of(3)).then(|| Id::new(1, seq - 1, self.log)),
            intent: PayloadRef { bytes: b"{}", total: 2 },
            variant: "call_tool_write",
            client_name: "cursor",
        };
        self.push_head(rows, &head, arguments, response);
    }

    pub(super) fn push_head(
        &mut self,
        rows: &mut RecordCollector,
        head: &HeadRef<'_>,
        arguments: &[u8],
        response: &[u8],
    ) {
        let (mut bytes, mut body) = (Vec::new(), Vec::new());
        codec::encode_head(head, &mut bytes);
        let cut = |bytes: &'static [u8]| PayloadRef { bytes, total: 7 };
        let part = PayloadRef { bytes: arguments, total: arguments.len() as u64 + 1 };
        let answer = PayloadRef { bytes: response, total: response.len() as u64 };
        codec::encode_body(part, answer, cut(b"{}"), &mut body);
        let hash = codec::chain(self.head, self.log, self.next, &bytes, &body);
        let (prev, seq) = (self.head, self.next);
        rows.push(&ChainedRecord { seq, prev, hash, head: &bytes, body: &body });
        (self.head, self.next) = (hash, self.next + 1);
    }
}

/// Who seals in tests.
pub(super) struct Sealing {
    key: NodeKey,
    pub(super) verifier: VerifierKey,
    node: &'static str,
    after: Hash,
    previous: Option<CheckpointHash>,
}

impl Sealing {
    pub(super) fn by(&self) -> SealedBy<'_> {
        let Self { key, verifier, node, after, previous } = self;
        SealedBy { key, verifier, node, after: *after, previous: *previous }
    }
}

/// The node of that name in fleet `f1`.
pub(super) fn sealed_by(
    node: &'static str,
    after: Hash,
    previous: Option<CheckpointHash>,
) -> Sealing {
    let key = NodeKey::of_seed(node.as_bytes()[0]);
    let verifier = key.verifier("f1", node).unwrap();
    Sealing { key, verifier, node, after, previous }
}

/// Segments of node `a` with so many records each.
pub(super) fn chain(
    log: &mut ExampleLog,
    sizes: &[u64],
    mut previous: Option<CheckpointHash>,
) -> Vec<SealedSegment> {
    let mut segments = Vec::new();
    for size in sizes {
        let after = log.head();
        let records = log.records(*size);
        let sealed = segment::seal(&records, sealed_by("a", after, previous).by()).unwrap();
        previous = Some(sealed.checkpoint.hash());
        segments.push(sealed);
    }
    segments
}
