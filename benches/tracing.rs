//! Cost of tracing for a call: off, not sampled, sampled; and of each part alone.
//!
//! The measured call is one of `retrieve_tools`, from its parsed message to its record, without sockets, in one thread.
//! The compared benchmarks differ only in `telemetry`, so their difference is the cost of tracing.

use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use criterion::Criterion;
use mcpproxy_config::Flags;
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::proxy::client::Client;
use mcpproxy_gateway::proxy::client::{Channel, Endpoint, Peer};
use mcpproxy_gateway::proxy::dispatch;
use mcpproxy_gateway::proxy::dispatch::Incoming;
use mcpproxy_gateway::proxy::reply::Reaction;
use mcpproxy_gateway::telemetry::{LogHandles, Sampling, TraceIds};
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::mcp::trace_context::PropagatedContext;
use mcpproxy_server::App;

const CALL: &str = r#"{"jsonrpc":"2.0","id":"one","method":"tools/call","params":{"name":"retrieve_tools","arguments":{"query":"x"}}}"#;
const TRACED: &str = r#"{"jsonrpc":"2.0","id":"one","method":"tools/call","params":{"name":"retrieve_tools","arguments":{"query":"x"},"_meta":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00"}}}"#;
/// No collector listens at this address: sampled spans are batched, sent and dropped.
const COLLECTOR: &str = r#""otlp_endpoint": "http://127.0.0.1:9""#;

type Failed = Box<dyn std::error::Error>;

fn calls(
    criterion: &mut Criterion,
    name: &str,
    telemetry: &str,
    message: &'static str,
) -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let flags = Flags { data_dir: Some(folder.path().to_owned()), ..Flags::default() };
    let text = format!(r#"{{"telemetry": {{{telemetry}}}}}"#);
    let (config, _) = mcpproxy_config::parse(&text, &|_| None, &flags)
        .map_err(|findings| format!("{findings:?}"))?;
    let app = App::start(config, LogHandles::default(), None)?;
    let worker = Rc::new(Worker::new(Arc::clone(&app.shared().proxy)));
    let offered = ClientCapabilities::default();
    let peer = Peer {
        client: Arc::new(Client::new(
            "s1".into(),
            "bench",
            "2025-11-25",
            ProtocolFamily::Legacy,
            offered,
        )),
        principal: Principal::Anonymous,
        endpoint: Endpoint::Search,
        channel: Channel::Answer,
        headers: None,
        trace: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let message = Bytes::from_static(message.as_bytes());
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            local.block_on(&runtime, async {
                let Ok(Incoming::Request(received)) = dispatch::read(&worker, black_box(&message))
                else {
                    return;
                };
                let reaction = dispatch::dispatch(&worker, &peer, received);
                let Reaction::Call { mut running, .. } = reaction else { return };
                while running.next().await.is_some() {}
            });
        });
    });
    drop(worker);
    app.close()?;
    Ok(())
}

fn main() -> Result<(), Failed> {
    let mut criterion = Criterion::default().configure_from_args();
    calls(&mut criterion, "tracing/off", "", CALL)?;
    let none = format!(r#"{COLLECTOR}, "traces_ratio": 0"#);
    calls(&mut criterion, "tracing/sampled out", &none, CALL)?;
    calls(&mut criterion, "tracing/off, context in _meta", "", TRACED)?;
    calls(&mut criterion, "tracing/sampled out by the client", &none, TRACED)?;
    calls(&mut criterion, "tracing/sampled in", COLLECTOR, CALL)?;
    let (ids, sampling) = (TraceIds::default(), Sampling::of(0.1));
    criterion.bench_function("tracing/ids and decision", |bencher| {
        bencher.iter(|| {
            let trace = ids.trace();
            (ids.spans(), sampling.takes(black_box(trace)))
        });
    });
    let parent = b"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
    let mut out = Vec::with_capacity(64);
    criterion.bench_function("tracing/read and write a traceparent", |bencher| {
        bencher.iter(|| {
            out.clear();
            if let Some(read) = PropagatedContext::new(black_box(parent), None) {
                read.context.write(&mut out);
            }
            out.len()
        });
    });
    criterion.final_summary();
    Ok(())
}
