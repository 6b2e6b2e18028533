//! The end of the log: gives each record its number, id and hash, and turns entries into batches.
//!
//! Belongs to the writer thread. It writes nothing itself: a [`Prepared`] batch can be committed
//! again after a failure, and its [`ChainTip`] says what the chain ends with then.

use std::borrow::Cow;

use super::begun::{self, Begun};
use super::chain_tip::ChainTip;
use super::codec::{self, BlockBuilder, HeadRef, PayloadRef};
use super::keys;
use super::pack::Packer;
use super::record::{
    Decision, Draft, Entry, Hash, Id, MAX_METADATA_BYTES, NodeId, Raw, Status, Text, Type, Verdict,
    decision_metadata,
};
use super::redact::Redactor;
use super::segment::{self, Builder};
use super::store::{Batch, Space, StoreError};
use super::view::{LogEnd, View};

/// A block is closed at so many records, or at [`BLOCK_BYTES`].
const BLOCK_RECORDS: u64 = 64;
/// A block is closed at so many bytes: what reading one record costs at most, one record aside.
const BLOCK_BYTES: usize = 32 << 10;

/// A batch, and the end of the chain once it is written.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What to write.
    pub batch: Batch,
    /// The last record in it.
    pub tip: ChainTip,
    /// How many records it holds.
    pub records: u64,
    /// How many bytes of heads and bodies it holds.
    pub bytes: usize,
}

impl Prepared {
    /// The first record in it.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.tip.seq + 1 - self.records
    }
}

/// The end of the log.
#[derive(Debug)]
pub struct Appender {
    node: NodeId,
    next: u64,
    last: Hash,
    stored_ms: u64,
    block: BlockBuilder,
    segment: Builder,
    batch: Batch,
    records: u64,
    bytes: usize,
    redactor: Redactor,
    packer: Packer,
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Appender {
    /// Takes up the log where it ends.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the last segment cannot be read.
    pub fn resume(view: &View, redactor: Redactor) -> Result<Self, StoreError> {
        let end = view.end()?;
        let mut appender = Self::at(view.node(), end, redactor);
        view.derive(segment::of(end.next), &mut appender.segment)?;
        Ok(appender)
    }

    /// Takes up a log that ends so, and of whose last segment nothing is kept.
    #[must_use]
    pub fn at(node: NodeId, end: LogEnd, redactor: Redactor) -> Self {
        Self {
            node,
            next: end.next,
            last: end.hash,
            stored_ms: end.stored_ms,
            block: BlockBuilder::new(end.next, end.hash),
            segment: Builder::default(),
            batch: Batch::default(),
            records: 0,
            bytes: 0,
            redactor,
            packer: Packer::default(),
            head: Vec::new(),
            body: Vec::new(),
        }
    }

    /// The last record given out; number 0 is before the first.
    #[must_use]
    pub fn tip(&self) -> ChainTip {
        ChainTip { seq: self.next - 1, hash: self.last }
    }

    /// Records in the batch that is being made.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.records
    }

    /// Bytes in the batch that is being made.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.bytes
    }

    /// Adds other writes to the batch that is being made.
    pub fn also(&mut self, writes: impl FnOnce(&mut Batch)) {
        writes(&mut self.batch);
    }

    /// Adds a call and its decisions, in this order. `now_ms` is the clock's milliseconds since
    /// 1970; where it ran back, the last time counts.
    pub fn push(&mut self, entry: &Entry, now_ms: u64) -> Id {
        let draft = &entry.draft;
        self.stored_ms = self.stored_ms.max(now_ms);
        let intent = self.redactor.payload(draft.payload(Raw::Intent));
        let error = draft.text(Text::Error);
        let error =
            self.redactor.text(error, error.len() + char::MAX.len_utf8() > Text::Error.limit());
        // Without its secrets it may be longer.
        let head = head_of(draft, self.stored_ms, &intent, Text::Error.cut(&error));
        self.encode_body_of(entry);
        let id = self.add(&head);
        for decision in &entry.decisions {
            let metadata = decision_metadata(decision);
            let metadata = self.redactor.payload(PayloadRef::cut(&metadata, metadata.len()));
            self.add_decision(&head, id, decision.verdict, limited(&metadata));
        }
        id
    }

    /// Adds the mark of a call that has begun to the batch (`begun`).
    pub fn mark_begun(&mut self, ticket: u64, entry: &Entry, now_ms: u64) {
        let draft = &entry.draft;
        self.stored_ms = self.stored_ms.max(now_ms);
        let intent = self.redactor.payload(draft.payload(Raw::Intent));
        let head = head_of(draft, self.stored_ms, &intent, begun::UNKNOWN);
        self.head.clear();
        codec::encode_head(&HeadRef { status: Status::Unknown, ..head }, &mut self.head);
        self.encode_body_of(entry);
        let metadata = |decision: &Decision| (decision.verdict, decision_metadata(decision));
        let metadata: Vec<_> = entry.decisions.iter().map(metadata).collect();
        let redacted = metadata.iter().map(|(verdict, metadata)| {
            (*verdict, self.redactor.payload(PayloadRef::cut(metadata, metadata.len())))
        });
        let redacted: Vec<_> = redacted.collect();
        let decisions =
            redacted.iter().map(|(verdict, metadata)| (*verdict, limited(metadata).bytes));
        let begun =
            Begun { head: &self.head, body: &self.body, decisions: decisions.collect() }.encode();
        self.bytes += begun.len();
        self.batch.put(Space::State, keys::begun(ticket), begun);
    }

    /// Adds the records of a call of which there is only the mark.
    ///
    /// # Errors
    ///
    /// [`codec::DecodeError`] if it is not whole; then nothing is added.
    pub fn push_begun(&mut self, begun: &Begun<'_>) -> Result<(), codec::DecodeError> {
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
        Ok(())
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

    /// Adds a record that was in a log before, byte for byte: its version decides its hash.
    ///
    /// # Errors
    ///
    /// [`codec::DecodeError`] if it is not whole.
    pub fn push_raw(&mut self, head: &[u8], body: &[u8]) -> Result<(), codec::DecodeError> {
        let decoded = codec::decode_head(head)?;
        self.stored_ms = self.stored_ms.max(decoded.stored_ms);
        for (buffer, bytes) in [(&mut self.head, head), (&mut self.body, body)] {
            buffer.clear();
            buffer.extend_from_slice(bytes);
        }
        self.add_encoded(&decoded);
        Ok(())
    }

    /// Leaves a hole: the next record gets the number `next` and follows `hash`.
    pub fn skip(&mut self, next: u64, hash: Hash) {
        self.close_block();
        if segment::of(next) != segment::of(self.next)
            && self.next > segment::start(segment::of(self.next))
        {
            self.finish_segment(segment::of(self.next));
        }
        (self.next, self.last) = (next, hash);
        self.block = BlockBuilder::new(next, hash);
    }

    /// The batch with all records added since the last; `None` if there are none.
    pub fn take(&mut self) -> Option<Prepared> {
        self.close_block();
        if self.batch.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut self.batch);
        let (records, bytes) = (std::mem::take(&mut self.records), std::mem::take(&mut self.bytes));
        Some(Prepared { batch, tip: self.tip(), records, bytes })
    }

    fn encode_body_of(&mut self, Entry { draft, late, .. }: &Entry) {
        let arguments = self.redactor.payload(draft.payload(Raw::Arguments));
        let response = self.redactor.payload(draft.payload(Raw::Response));
        let mut metadata = self.redactor.payload(draft.payload(Raw::Metadata));
        let is_whole = metadata.1 == metadata.0.len() as u64;
        if let Some(late) = late.as_ref().filter(|_| is_whole) {
            let more = late.added_to(&metadata.0);
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

    /// Adds the record of `head` and `self.body`.
    fn add(&mut self, head: &HeadRef<'_>) -> Id {
        self.head.clear();
        codec::encode_head(head, &mut self.head);
        self.add_encoded(head)
    }

    /// Adds the record of `self.head`, which is `head` encoded, and `self.body`.
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

    /// Writes what is derived from a segment that is full.
    fn finish_segment(&mut self, number: u64) {
        finish_segment(&std::mem::take(&mut self.segment), number, &mut self.batch);
    }
}

/// Writes what is derived from the segment `number`.
pub(super) fn finish_segment(segment: &Builder, number: u64, batch: &mut Batch) {
    for (bucket, postings) in segment.postings() {
        batch.put(Space::Index, keys::postings(bucket, number), postings);
    }
    for (bucket, stats) in segment.buckets() {
        batch.put(Space::Stats, keys::bucket(bucket, number), stats.encode());
    }
    batch.put(Space::Segments, keys::number(number), segment.bounds().encode());
}

/// The head of a draft's record.
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
        client_name: draft.text(Text::ClientName),
    }
}

/// A payload after redaction: borrowed, or rewritten.
type Redacted<'a> = (Cow<'a, [u8]>, u64);

fn borrowed<'a>(payload: &'a Redacted<'_>) -> PayloadRef<'a> {
    PayloadRef { bytes: &payload.0, total: payload.1 }
}

fn limited<'a>(payload: &'a Redacted<'_>) -> PayloadRef<'a> {
    let bytes = payload.0.get(..MAX_METADATA_BYTES).unwrap_or(&payload.0);
    PayloadRef { bytes, total: payload.1 }
}
