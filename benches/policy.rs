//! Cost of the operator's rules for a call, and of looking up an agent token among all.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use criterion::{Criterion, criterion_group, criterion_main};
use mcpproxy_policy::SessionFacts;
use mcpproxy_policy::identity::{AgentSecret, MAX_TOKENS, StoredToken, TokenTable};
use mcpproxy_policy::rules::{
    RuleAction, RuleOptions, RuleRequest, RuleSet, RuleTarget, RuleText, Subject,
};
use mcpproxy_policy::tool::{Annotations, Rules, Tool, ToolName};
use serde_json::value::RawValue;

/// The allocator of the released program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn tool(name: &str) -> Option<Arc<Tool>> {
    Some(Arc::new(Tool {
        input_schema: RawValue::from_string(
            r#"{"type":"object","properties":{"path":{"type":"string"},"mode":{"type":"string"},"size":{"type":"integer"},"tags":{"type":"array","items":{"type":"string"}}}}"#.into(),
        )
        .ok()?,
        ..Tool::named(ToolName::parse(name)?, Annotations::default(), &Rules::default())
    }))
}

/// A kilobyte of arguments.
fn arguments() -> String {
    let text = "word ".repeat(40);
    let more: String =
        (0..24).map(|at| format!(r#","key_{at}":"value of {at} and more""#)).collect();
    format!(
        r#"{{"path":"/home/me/notes.txt","mode":"append","size":42,"tags":["a","b"],"text":"{text}"{more}}}"#
    )
}

/// Rules that read the principal and the tool, distributed over 50 tools.
fn plain(count: usize) -> String {
    (0..count)
        .map(|at| {
            format!(
                "@id(\"plain {at}\") forbid(principal == Agent::\"token:t{at}\", action, resource == Tool::\"s:t{}\");\n",
                at % 50
            )
        })
        .collect()
}

/// Rules that read arguments; the first 20 apply to the called tool, the others to other tools.
fn looking(count: usize) -> String {
    (0..count)
        .map(|at| {
            let tool = if at < 20 { 0 } else { at };
            let condition = match at % 4 {
                0 => format!("context.args has path && context.args.path like \"/etc/{at}/*\""),
                1 => format!("context.args has mode && context.args.mode == \"mode {at}\""),
                2 => format!("context.args has size && context.args.size > {}", 1000 + at),
                _ => format!("context.args has tags && context.args.tags.contains(\"secret {at}\")"),
            };
            format!(
                "@id(\"looking {at}\") forbid(principal, action in [Action::\"read\", Action::\"write\", \
                 Action::\"destructive\"], resource == Tool::\"s:t{tool}\") when {{ {condition} }};\n"
            )
        })
        .collect()
}

fn policy(c: &mut Criterion) {
    let Some(tool) = tool("s:t0") else { return };
    let arguments = arguments();
    let request = RuleRequest {
        subject: Subject { id: "token:somebody", groups: &[] },
        action: RuleAction::Write,
        target: RuleTarget::Tool(&tool),
        arguments: arguments.as_bytes(),
        sensitivity: None,
        reason: "",
        client: "bench",
        session: SessionFacts::default(),
        carries_out: false,
        now: SystemTime::UNIX_EPOCH,
    };
    let mut group = c.benchmark_group("policy");
    group.measurement_time(Duration::from_secs(2)).sample_size(20);
    for (name, text) in [
        ("20 rules over tool and principal", plain(20)),
        ("1000 rules over tool and principal", plain(1000)),
        ("20 rules over arguments, 1 KB", looking(20)),
        ("1000 rules over arguments, 1 KB", looking(1000)),
    ] {
        let text = RuleText { file: "bench.cedar".into(), text };
        match RuleSet::load(&[text], RuleOptions::default(), None) {
            Ok(rules) => {
                group.bench_function(name, |b| b.iter(|| rules.decide(black_box(&request))));
            }
            Err(problems) => {
                problems.iter().for_each(|problem| eprintln!("{problem}"));
            }
        }
    }
    group.finish();
}

/// Look-up of a token among the maximum number of tokens, in an order that makes caches ineffective.
fn tokens(c: &mut Criterion) {
    let secrets: Vec<_> = (0..MAX_TOKENS)
        .map(|at| AgentSecret::new(*blake3::hash(&at.to_le_bytes()).as_bytes()))
        .collect();
    let kept = |(at, secret): (usize, &AgentSecret)| StoredToken {
        name: format!("token{at}").into(),
        hash: secret.hash(),
        servers: Vec::new(),
        tools: Vec::new(),
        operations: Vec::new(),
        created: 0,
        expires: Some(u64::from(u32::MAX)),
    };
    let kept: Vec<_> = secrets.iter().enumerate().map(kept).collect();
    let table = TokenTable::new(&kept);
    let mut at = 0;
    let name = format!("a token among {MAX_TOKENS}");
    c.bench_function(&name, |b| {
        b.iter(|| {
            at = (at + 7919) % secrets.len();
            let secret = secrets.get(at).map(AgentSecret::expose).unwrap_or_default();
            table.prove(black_box(secret.as_bytes()), SystemTime::UNIX_EPOCH).is_ok()
        });
    });
}

criterion_group!(benches, policy, tokens);
criterion_main!(benches);
