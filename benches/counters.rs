//! Cost of the metrics of a call to a known server: its start, and its end with the outcome and three durations. Also
//! with the tool and the two verdicts of a validated call.

use std::hint::black_box;
use std::time::Duration;

use criterion::Criterion;
use mcpproxy_gateway::telemetry::Calls;
use mcpproxy_gateway::telemetry::call_metrics::{CallDuration, Judged, Outcome};
use mcpproxy_policy::tool::{ServerId, ServerIds};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let (calls, mut ids) = (Calls::default(), ServerIds::default());
    let servers: Vec<ServerId> = (0..200).map(|at| ids.assign(&format!("s{at}").into())).collect();
    let tally = calls.tally();
    for server in &servers {
        tally.ended(Some(*server), Outcome::Success, CallDuration::default());
    }
    let mut us = 0;
    criterion.bench_function("counters/call", |bencher| {
        bencher.iter(|| {
            us = (us + 37) % 100_000;
            let total = black_box(Duration::from_micros(us + 40));
            let upstream = Some(black_box(Duration::from_micros(us)));
            tally.began();
            tally.ended(
                black_box(servers.get(7).copied()),
                Outcome::Success,
                CallDuration { total, upstream, ..CallDuration::default() },
            );
        });
    });
    criterion.bench_function("counters/call, tool and verdicts", |bencher| {
        bencher.iter(|| {
            us = (us + 37) % 100_000;
            let total = black_box(Duration::from_micros(us + 40));
            let upstream = Some(black_box(Duration::from_micros(us)));
            let server = black_box(servers.get(7).copied());
            tally.began();
            tally.judged(Judged::ArgumentsPassed);
            tally.judged(Judged::AnswerPassed);
            tally.ended(
                server,
                Outcome::Success,
                CallDuration { total, upstream, ..CallDuration::default() },
            );
            if let Some(server) = server {
                tally.tool(server, black_box("read_item"), "call_tool_read", Outcome::Success);
            }
        });
    });
    let tools: Vec<String> = (0..10_000).map(|at| format!("tool_{at}")).collect();
    for (at, tool) in tools.iter().enumerate() {
        if let Some(server) = servers.get(at % servers.len()) {
            tally.tool(*server, tool, "call_tool_read", Outcome::Success);
        }
    }
    criterion.bench_function("counters/by tool, 10 000 series", |bencher| {
        bencher.iter(|| calls.by_tool(black_box(10_000)));
    });
    criterion.bench_function("counters/read 200 servers", |bencher| bencher.iter(|| calls.read()));
    criterion.final_summary();
}
