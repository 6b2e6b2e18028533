//! Upper bounds of allocations (`benches/README.md`, Budgets). Once buffers are warm, inspecting and validating a
//! conforming answer allocates only the inspector's list of slices, and the state of the evaluation if the document
//! arrives in several slices. The record of a call allocates its entry and one buffer.

#[path = "../benches/common/mod.rs"]
mod common;

use bytes::Bytes;
use mcpproxy_activity::{Draft, Entry, Raw, Source, Status, Text, Type};
use mcpproxy_protocol::mcp::jsonrpc;
use mcpproxy_protocol::wire::splice::Splice;
use mcpproxy_schema::compile::{Settings, compile};
use mcpproxy_schema::judge::{JudgeScratch, Verdict};
use mcpproxy_schema::output::{Finding, Inspector, MissingContent, Policy, Required, Treatment};

/// Allocations per answer: the list of slices.
const PER_ANSWER: u64 = 1;
/// Allocations per answer whose document arrives in slices: the list and its growth to 256 slices; the state of the
/// evaluation, its open containers, its incomplete item and its hashes, each including their growth.
const PER_ARRIVING_ANSWER: u64 = 24;
/// Allocations per record: the entry and its buffer.
const PER_RECORD: u64 = 2;

fn judge(schema: &mcpproxy_schema::compile::Schema, scratch: &mut JudgeScratch, whole: &Bytes) {
    let mut inspector = Inspector::new(Treatment::Hold, &Policy::default(), 42, 1);
    assert!(inspector.feed(whole).is_ok());
    assert!(inspector.end().is_ok());
    assert_eq!(inspector.finding(MissingContent::Allow), Finding::AskTheSchema);
    let judgment = schema.judge(inspector.document(), scratch);
    assert_eq!(judgment.verdict, Verdict::Conforms);
}

// SC-003, SC-006
#[test]
fn conforming_answer_is_validated_without_allocating_for_its_content() {
    let schema = compile(common::SCHEMA.as_bytes(), &Settings::default()).unwrap();
    for (name, size) in common::SIZES {
        let whole = Bytes::from(common::response(size));
        let policy = Policy::default();
        if size as u64 > policy.max_bytes {
            continue;
        }
        let mut scratch = JudgeScratch::new();
        judge(&schema, &mut scratch, &whole);
        judge(&schema, &mut scratch, &whole);
        let counted = allocation_counter::measure(|| judge(&schema, &mut scratch, &whole));
        assert!(counted.count_total <= PER_ANSWER, "{name}: {}", counted.count_total);
    }
}

#[test]
fn fr_a14_arriving_document_is_evaluated_without_allocating_for_its_content() {
    let schema = compile(common::SCHEMA.as_bytes(), &Settings::default()).unwrap();
    let mut scratch = JudgeScratch::new();
    for (name, size) in common::SIZES {
        let whole = Bytes::from(common::response(size));
        if size as u64 > Policy::default().max_bytes {
            continue;
        }
        let slices: Vec<_> = (0..whole.len())
            .step_by(whole.len().div_ceil(256))
            .map(|at| whole.slice(at..whole.len().min(at + whole.len().div_ceil(256))))
            .collect();
        let mut judge = || {
            let mut inspector = Inspector::new(Treatment::Hold, &Policy::default(), 42, 1);
            for slice in &slices {
                assert!(inspector.feed(slice).is_ok());
                inspector.evaluate_arrived(&schema, &mut scratch);
            }
            assert!(inspector.end().is_ok());
            inspector.has_conforming_document()
        };
        assert!(judge(), "{name}");
        let counted = allocation_counter::measure(|| assert!(judge()));
        assert!(counted.count_total <= PER_ARRIVING_ANSWER, "{name}: {}", counted.count_total);
    }
}

#[test]
fn fr_a14_document_is_accepted_in_one_pass_without_an_allocation() {
    let schema = compile(common::SCHEMA.as_bytes(), &Settings::default()).unwrap();
    // Evaluates alternately with a schema that declares no names and with the usual one. The documents contain escapes.
    let open = compile(b"true", &Settings::default()).unwrap();
    let mut scratch = JudgeScratch::new();
    for (name, size) in common::SIZES {
        let document = common::structured(size);
        let mut both = || {
            assert!(schema.accepts_in_one_pass(document.as_bytes(), &mut scratch), "{name}");
            assert!(open.accepts_in_one_pass(document.as_bytes(), &mut scratch), "{name}");
        };
        both();
        both();
        let counted = allocation_counter::measure(both);
        assert_eq!(counted.count_total, 0, "{name}");
    }
}

#[test]
fn mcp_2026_required_result_members_are_added_without_an_allocation() {
    let [(_, size), ..] = common::SIZES;
    let whole = Bytes::from(common::response(size));
    let reply = |required| {
        let mut inspector = Inspector::new(Treatment::Forward, &Policy::default(), 42, 1);
        let mut reply = Splice::new();
        let slice = inspector.feed(&whole).unwrap();
        match inspector.ending(required) {
            None => reply.push(slice),
            Some(ending) => reply.push_ending(slice, ending),
        }
        reply.push_front(jsonrpc::result_head(b"1"));
        reply.push(jsonrpc::TAIL);
        reply.len()
    };
    let (plain, _) = (reply(Required::Nothing), reply(Required::Type));
    let count = |required| {
        let mut len = 0;
        let counted = allocation_counter::measure(|| len = reply(required));
        (counted.count_total, len)
    };
    let (allocations, _) = count(Required::Nothing);
    for (required, added) in [
        (Required::Type, r#","resultType":"complete""#),
        (Required::TypeAndCaching, r#","resultType":"complete","ttlMs":0,"cacheScope":"private""#),
    ] {
        assert_eq!(count(required), (allocations, plain + added.len()), "{required:?}");
    }
}

#[test]
fn act_2_record_takes_one_entry_and_one_buffer() {
    let counted = allocation_counter::measure(|| {
        let draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Error);
        let mut entry: Box<Entry> = draft.into();
        let draft = &mut entry.draft;
        draft.set(Text::SessionId, "6f1f3c1e-8d0c-4b8e-9a54-1d1f0a2b3c4d");
        draft.set(Text::ClientName, "claude-code");
        draft.set(Text::RequestId, "7");
        draft.set(Text::Server, "github");
        draft.set(Text::Tool, "list_issues");
        draft.keep(Raw::Arguments, br#"{"owner":"octo","repo":"hello","labels":["bug"]}"#, 4096);
        draft.keep(Raw::Intent, br#"{"operation_type":"read","reason":"to see it"}"#, 4096);
        draft.append(Raw::Response, &[b'x'; 10_000], 1024);
        draft.append(Raw::Response, &[b'x'; 800], 1024);
        draft.set(Text::Error, "");
    });
    assert!(counted.count_total <= PER_RECORD, "{}", counted.count_total);
}
