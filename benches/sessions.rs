//! Cost of decrypting the id of a session that a fleet node does not know yet, and of creating a session id.

use std::hint::black_box;

use criterion::Criterion;
use mcpproxy_downstream::session::SessionKey;
use mcpproxy_downstream::session::{Opening, fresh_id};
use mcpproxy_downstream::session_ticket::TicketOffice;
use mcpproxy_downstream::source::Source;
use mcpproxy_fleet::cluster_key::IdKeys;
use mcpproxy_fleet::cluster_key::{ClusterKeys, KeyPurpose};
use mcpproxy_fleet::node_state::NodeTag;
use mcpproxy_gateway::proxy::client::Client;
use mcpproxy_gateway::proxy::client::Endpoint;
use mcpproxy_policy::Principal;
use mcpproxy_protocol::mcp::capabilities::ClientCapabilities;
use mcpproxy_protocol::mcp::revisions::{NEWEST_LEGACY, ProtocolFamily};

/// The allocator of the released program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn keys(count: u8) -> Option<IdKeys> {
    let secret = |first: u8| (0..32).map(|at| format!("{:02x}", first + at)).collect::<String>();
    let secrets: Vec<String> = (0..count).map(secret).collect();
    let keys = ClusterKeys::parse(secrets.iter().map(String::as_str)).ok()?;
    Some(IdKeys::of(&keys.derive(KeyPurpose::Session)))
}

fn opening(name: &str) -> Opening {
    let none = ClientCapabilities::default();
    let client = Client::new(fresh_id([7; 16]), name, NEWEST_LEGACY, ProtocolFamily::Legacy, none);
    let (key, source) = (SessionKey::default(), Source::default());
    Opening { client, endpoint: Endpoint::Search, principal: Principal::Admin, key, source }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let node = NodeTag::of_bytes([1; 16]);
    let Some((old, all)) = keys(1).zip(keys(8)) else { return };
    // The key that sealed the id is the only one, or the first of eight.
    for (what, keys) in [("one key", old), ("eight keys", all)] {
        let office = TicketOffice::new(keys, node);
        for (length, name) in [("usual", "claude-code".to_owned()), ("longest", "x".repeat(128))] {
            let opening = opening(&name);
            let Some(id) = office.seal(&opening, [7; 16], 1) else { return };
            criterion.bench_function(&format!("sessions/open, {length}, {what}"), |bencher| {
                bencher.iter(|| office.open(black_box(&id), black_box(2)));
            });
            criterion.bench_function(&format!("sessions/seal, {length}, {what}"), |bencher| {
                bencher.iter(|| office.seal(black_box(&opening), black_box([7; 16]), 1));
            });
            let altered = format!("{}A", id.get(..id.len() - 1).unwrap_or_default());
            criterion.bench_function(&format!("sessions/refuse, {length}, {what}"), |bencher| {
                bencher.iter(|| office.open(black_box(&altered), black_box(2)));
            });
        }
    }
    criterion.final_summary();
}
