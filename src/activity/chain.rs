//! Appender for the hash chain: gives each record a number, an id and a hash that covers its predecessor, and collects
//! entries into batches.
//!
//! The writer thread owns the appender, which does no I/O. A [`Prepared`] batch can therefore be committed again after
//! a failure; its [`ChainTip`] becomes the chain's tip when the batch is written.

use std::borrow::Cow;

use super::bytes::Packer;
use super::chain_tip::ChainTip;
use super::codec::{self, BlockBuilder, HeadRef, PayloadRef};
use super::in_flight::{self, CallMark};
use super::keys;
use super::record::{
    Decision, Draft, Entry, Hash, Id, MAX_METADATA_BYTES, NodeId, Raw, Status, Text, Type, Verdict,
    decision_metadata, with_member,
};
use super::redact::{OwnNames, Redactor};
use super::segment::{self, Builder};
use super::store::{Batch, Space, StoreError};
use super::view::{LogEnd, View};
use mcpproxy_json::members::has_lone_surrogate;

/// Number of records at which a block is closed, unless [`BLOCK_BYTES`] closes it earlier.
const BLOCK_RECORDS: u64 = 64;
/// Size in bytes at which a block is closed; bounds the cost of reading a single record.
const BLOCK_BYTES: usize = 32 << 10;

/// A batch ready to be committed, with the chain's tip before and after it.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub batch: Batch,
    /// Chain tip before the batch.
    pub follows: ChainTip,
    /// Chain tip after the batch.
    pub tip: ChainTip,
    pub records: u64,
    /// Total size of the heads and bodies in bytes.
    pub bytes: usize,
}

impl Prepared {
    /// Creates an empty batch that follows `tip`.
    pub(crate) fn empty(tip: ChainTip) -> Self {
        Self { batch: Batch::default(), follows: tip, tip, records: 0, bytes: 0 }
    }

    /// Sequence number of the batch's first record.
    pub(crate) fn first(&self) -> u64 {
        self.tip.seq + 1 - self.records
    }
}

/// Assigns numbers and hashes, and encodes records into blocks and segments.
#[derive(Debug)]
pub struct Appender {
    node: NodeId,
    next: u64,
    last: Hash,
    stored_ms: u64,
    block: BlockBuilder,
    segment: Builder,
    batch: Batch,
    /// Chain tip before the pending batch.
    follows: ChainTip,
    records: u64,
    bytes: usize,
    redactor: Redactor,
    packer: Packer,
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Appender {
    /// Resumes at the end of the log.
    pub fn resume(view: &View, redactor: Redactor) -> Result<Self, StoreError> {
        let end = view.end()?;
        let mut appender = Self::at(view.node(), end, redactor);
        view.derive(segment::of(end.next), &mut appender.segment)?;
        Ok(appender)
    }

    /// Resumes at `end`, with an empty segment builder.
    pub(crate) fn at(node: NodeId, end: LogEnd, redactor: Redactor) -> Self {
        Self {
            node,
            next: end.next,
            last: end.hash,
            stored_ms: end.stored_ms,
            block: BlockBuilder::new(end.next, end.hash),
            segment: Builder::default(),
            batch: Batch::default(),
            follows: ChainTip { seq: end.next.saturating_sub(1), hash: end.hash },
            records: 0,
            bytes: 0,
            redactor,
            packer: Packer::default(),
            head: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Resumes at `end`, just before a gap, so that the gap can be filled with records.
    pub(crate) fn resume_in_gap(
        view: &View,
        end: LogEnd,
        redactor: Redactor,
    ) -> Result<Self, StoreError> {
        let mut appender = Self::at(view.node(), end, redactor);
        view.derive(segment::of(end.next), &mut appender.segment)?;
        Ok(appender)
    }

    /// Finishes filling the gap that began at record `first`. Writes the index of the last changed segment, unless that
    /// segment is the log's last one, which is not full.
    pub(crate) fn finish_in_gap(&mut self, view: &View, first: u64) -> Result<(), StoreError> {
        let number = segment::of(self.next);
        let is_begun = self.next > segment::start(number) || segment::of(first) == number;
        if !is_begun || number >= segment::of(view.next()) {
            return Ok(());
        }
        if number != segment::of(first) {
            view.derive(number, &mut self.segment)?;
        }
        self.finish_segment(number);
        Ok(())
    }

    /// Chain tip after the last added record; its number is 0 before the first record.
    pub(crate) fn tip(&self) -> ChainTip {
        ChainTip { seq: self.next - 1, hash: self.last }
    }

    /// Storage time of the last record in milliseconds since 1970; later records are never older.
    pub(crate) fn stored_ms(&self) -> u64 {
        self.stored_ms
    }

    /// Number of records in the pending batch.
    pub fn pending(&self) -> u64 {
        self.records
    }

    /// Bytes in the pending batch.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes
    }

    /// Adds further writes to the pending batch.
    pub(crate) fn add_writes(&mut self, writes: impl FnOnce(&mut Batch)) {
        writes(&mut self.batch);
    }

    /// Adds a call, followed by its decisions. `now_ms` is the wall clock in milliseconds since 1970; a clock
    /// that ran backwards is ignored.
    pub fn push(&mut self, entry: &Entry, now_ms: u64) -> Id {
        let draft = &entry.draft;
        self.stored_ms = self.stored_ms.max(now_ms);
        let intent = self.redactor.payload(draft.payload(Raw::Intent));
        let error = self.redacted_error(entry);
        // Redaction can make the text longer.
        let head = head_of(draft, self.stored_ms, &intent, Text::Error.cut(&error));
        self.encode_body_of(entry);
        let id = self.add(&head);
        for decision in &entry.decisions {
            let metadata = decision_metadata(decision);
            let metadata = PayloadRef::cut(&metadata, metadata.len());
            let metadata = self.redactor.own_payload(metadata, own_names(entry));
            self.add_decision(&head, id, decision.verdict, limited(&metadata));
        }
        id
    }

    /// Adds the mark of a call in flight to the batch (`in_flight`).
    pub fn mark_call(&mut self, ticket: u64, entry: &Entry, now_ms: u64) {
        self.mark(ticket, entry, now_ms, Status::Unknown, in_flight::OUTCOME_UNKNOWN);
    }

    /// Adds the mark of counted refusals that have no record yet (`refusals`).
    pub(crate) fn mark_refusals(&mut self, ticket: u64, entry: &Entry, now_ms: u64) {
        let error = self.redacted_error(entry).into_owned();
        self.mark(ticket, entry, now_ms, entry.draft.status, Text::Error.cut(&error));
    }

    fn redacted_error<'d>(&self, entry: &'d Entry) -> Cow<'d, str> {
        let error = entry.draft.text(Text::Error);
        let is_cut = error.len() + char::MAX.len_utf8() > Text::Error.limit();
        self.redactor.own_text(error, is_cut, own_names(entry))
    }

    fn mark(&mut self, ticket: u64, entry: &Entry, now_ms: u64, status: Status, error: &str) {
        let draft = &entry.draft;
        self.stored_ms = self.stored_ms.max(now_ms);
        let intent = self.redactor.payload(draft.payload(Raw::Intent));
        let head = head_of(draft, self.stored_ms, &intent, error);
        self.head.clear();
        codec::encode_head(&HeadRef { status, ..head }, &mut self.head);
        self.encode_body_of(entry);
        let metadata = |decision: &Decision| (decision.verdict, decision_metadata(decision));
        let metadata: Vec<_> = entry.decisions.iter().map(metadata).collect();
        let redacted = metadata.iter().map(|(verdict, metadata)| {
            let metadata = PayloadRef::cut(metadata, metadata.len());
            (*verdict, self.redactor.own_payload(metadata, own_names(entry)))
        });
        let redacted: Vec<_> = redacted.collect();
        let decisions =
            redacted.iter().map(|(verdict, metadata)| (*verdict, limited(metadata).bytes));
        let begun = CallMark { head: &self.head, body: &self.body, decisions: decisions.collect() }
            .encode();
        self.bytes += begun.len();
        self.batch.put(Space::State, keys::call_mark(ticket), begun);
    }

    /// Adds the records of a call of which only the mark is stored. Returns the call's status; adds nothing if the mark
    /// is malformed.
    pub(crate) fn push_marked_call(
        &mut self,
        begun: &CallMark<'_>,
    ) -> Result<Status, codec::DecodeError> {
        let head = codec::decode_head(begun.head)?;
        codec::decode_body(begun.body)?;
        self.stored_ms = self.stored_ms.max(head.stored_ms);
        let head = HeadRef { stored_ms: self.stored_ms, ..head };
        self.body.clear();
        self.body.extend_from_slice(begun.body);
        let id = self.add(&head);
        for (verdict, metadata) in &begun.decisions {
            self.add_decision(&head, id, *verdict, PayloadRef::cut(metadata, metadata.len()));
        }
        Ok(head.status)
    }

    /// Adds the record of a decision about the call with this head.
    fn add_decision(
        &mut self,
        call: &HeadRef<'_>,
        id: Id,
        verdict: Verdict,
        metadata: PayloadRef<'_>,
    ) {
        let head = HeadRef {
            kind: Type::PolicyDecision,
            status: verdict.status(),
            error: "",
            duration_us: 0,
            overhead_us: 0,
            response_bytes: 0,
            parent: Some(id),
            ..*call
        };
        self.body.clear();
        let none = PayloadRef::default();
        codec::encode_body(none, none, metadata, &mut self.body);
        self.add(&head);
    }

    /// Adds an existing record byte for byte; its format version determines how it is hashed.
    pub(crate) fn push_raw(&mut self, head: &[u8], body: &[u8]) -> Result<(), codec::DecodeError> {
        let decoded = codec::decode_head(head)?;
        self.stored_ms = self.stored_ms.max(decoded.stored_ms);
        for (buffer, bytes) in [(&mut self.head, head), (&mut self.body, body)] {
            buffer.clear();
            buffer.extend_from_slice(bytes);
        }
        self.add_encoded(&decoded);
        Ok(())
    }

    /// Adds an existing record under a new number.
    pub(crate) fn push_renumbered(&mut self, head: &HeadRef<'_>, body: &[u8]) -> Id {
        self.stored_ms = self.stored_ms.max(head.stored_ms);
        self.body.clear();
        self.body.extend_from_slice(body);
        self.add(&HeadRef { stored_ms: self.stored_ms, ..*head })
    }

    /// Leaves a gap: the next record gets the number `next`, and `hash` is its predecessor hash.
    pub(crate) fn skip(&mut self, next: u64, hash: Hash) {
        self.close_block();
        if segment::of(next) != segment::of(self.next)
            && self.next > segment::start(segment::of(self.next))
        {
            self.finish_segment(segment::of(self.next));
        }
        (self.next, self.last) = (next, hash);
        self.block = BlockBuilder::new(next, hash);
    }

    /// Takes the pending batch; `None` if it is empty.
    pub fn take(&mut self) -> Option<Prepared> {
        self.close_block();
        if self.batch.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut self.batch);
        let (records, bytes) = (std::mem::take(&mut self.records), std::mem::take(&mut self.bytes));
        let tip = self.tip();
        let follows = std::mem::replace(&mut self.follows, tip);
        Some(Prepared { batch, follows, tip, records, bytes })
    }

    fn encode_body_of(&mut self, entry: &Entry) {
        let Entry { draft, late, .. } = entry;
        let arguments = self.redactor.payload(draft.payload(Raw::Arguments));
        let response = self.redactor.payload(draft.payload(Raw::Response));
        let metadata = draft.payload(Raw::Metadata);
        let mut metadata = match draft.has_own_metadata {
            true => (Cow::Borrowed(metadata.bytes), metadata.total),
            false => self.redactor.own_payload(metadata, own_names(entry)),
        };
        let is_whole = metadata.1 == metadata.0.len() as u64;
        if let Some(late) = late.as_ref().filter(|_| is_whole) {
            let more = late.append_to(&metadata.0);
            metadata.1 = more.len() as u64;
            metadata.0 = Cow::Owned(more);
        }
        if is_whole && has_lone_surrogate(&response.0) {
            let more = with_member(&metadata.0, LONE_SURROGATE, "\"response\"");
            metadata.1 = more.len() as u64;
            metadata.0 = Cow::Owned(more);
        }
        self.body.clear();
        codec::encode_body(
            borrowed(&arguments),
            borrowed(&response),
            limited(&metadata),
            &mut self.body,
        );
    }

    /// Adds the record made of `head` and `self.body`.
    fn add(&mut self, head: &HeadRef<'_>) -> Id {
        self.head.clear();
        codec::encode_head(head, &mut self.head);
        self.add_encoded(head)
    }

    /// Adds the record made of `self.head`, which is `head` encoded, and `self.body`.
    fn add_encoded(&mut self, head: &HeadRef<'_>) -> Id {
        let seq = self.next;
        let hash = codec::chain(self.last, self.node, seq, &self.head, &self.body);
        let block = &mut self.block;
        let before = block.bytes();
        block.push(&self.head, hash, &self.body);
        let bytes = block.bytes() - before;
        let full = block.count() >= BLOCK_RECORDS || block.bytes() >= BLOCK_BYTES;
        self.segment.add(seq, head, bytes);
        self.records += 1;
        self.bytes += bytes;
        self.last = hash;
        self.next += 1;
        let ends_segment = segment::of(self.next) != segment::of(seq);
        if full || ends_segment {
            self.close_block();
        }
        if ends_segment {
            self.finish_segment(segment::of(seq));
        }
        Id::new(head.stored_ms, seq, self.node)
    }

    fn close_block(&mut self) {
        if self.block.count() > 0 {
            let key = keys::number(self.block.first());
            let (heads, bodies) = self.block.finish();
            self.batch.put(Space::Heads, key.clone(), self.packer.pack(heads));
            self.batch.put(Space::Bodies, key, self.packer.pack(bodies));
        }
    }

    /// Writes the index and counters of a full segment.
    fn finish_segment(&mut self, number: u64) {
        finish_segment(&std::mem::take(&mut self.segment), number, &mut self.batch);
    }
}

/// Writes the index, counters and bounds of segment `number`.
pub(super) fn finish_segment(segment: &Builder, number: u64, batch: &mut Batch) {
    for (bucket, postings) in segment.postings() {
        batch.put(Space::Index, keys::postings(bucket, number), postings);
    }
    for (bucket, stats) in segment.buckets() {
        batch.put(Space::Stats, keys::bucket(bucket, number), stats.encode());
    }
    batch.put(Space::Segments, keys::number(number), segment.bounds().encode());
}

/// Builds the head of a draft's record.
fn head_of<'a>(
    draft: &'a Draft,
    stored_ms: u64,
    intent: &'a Redacted<'_>,
    error: &'a str,
) -> HeadRef<'a> {
    HeadRef {
        stored_ms,
        kind: draft.kind,
        source: draft.source,
        principal: draft.text(Text::Principal),
        status: draft.status,
        operation: draft.operation,
        server: draft.text(Text::Server),
        tool: draft.text(Text::Tool),
        error,
        started: draft.started,
        duration_us: draft.duration_us,
        overhead_us: draft.overhead_us,
        response_bytes: draft.payload(Raw::Response).total,
        session_id: draft.text(Text::SessionId),
        request_id: draft.text(Text::RequestId),
        parent: None,
        intent: limited(intent),
        variant: draft.variant,
        repeated: draft.repeated,
        client_name: draft.text(Text::ClientName),
    }
}

/// Member of `metadata` that names the payload whose kept part contains an escaped lone surrogate. Many JSON parsers
/// reject or replace lone surrogates.
const LONE_SURROGATE: &str = "lone_surrogate";

/// A payload after redaction and its original length.
type Redacted<'a> = (Cow<'a, [u8]>, u64);

fn borrowed<'a>(payload: &'a Redacted<'_>) -> PayloadRef<'a> {
    PayloadRef { bytes: &payload.0, total: payload.1 }
}

fn limited<'a>(payload: &'a Redacted<'_>) -> PayloadRef<'a> {
    let bytes = payload.0.get(..MAX_METADATA_BYTES).unwrap_or(&payload.0);
    PayloadRef { bytes, total: payload.1 }
}

fn own_names(Entry { draft, decisions, .. }: &Entry) -> OwnNames<'_> {
    OwnNames {
        principal: draft.text(Text::Principal),
        server: draft.text(Text::Server),
        tool: draft.text(Text::Tool),
        decisions,
    }
}
