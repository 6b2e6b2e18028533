//! `/metrics`: the proxy's numbers for Prometheus and what reads its formats ([`exposition`](super::exposition)).
//!
//! Each number is read where it is kept, at the scrape; none is kept here. The number of series is bounded by
//! `telemetry.max_series` and by the number of servers. Names of servers and tools are in it, so it asks for the API key.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::exposition::Exposition;
use super::fleet::ChainSeen;
use super::query_parameters::Query;
use super::response::{self, ApiError};
use super::state::State;
use crate::activity::{Health, Standing};
use crate::downstream::body::Body;
use crate::embeddings::{RequestKind, RequestOutcome};
use crate::fleet::facts::FactStanding;
use crate::fleet::heartbeat::LedgerStanding;
use crate::fleet::living_nodes::NodeState;
use crate::fleet::{FleetNode, IndexRole};
use crate::proxy::Worker;
use crate::telemetry::build_info;
use crate::telemetry::call_metrics::{Decision, Judged, Refusal, Totals};
use crate::telemetry::export_queue::DropReason;
use crate::telemetry::histogram::Durations;
use crate::upstream::supervisor::{ServerState, Status, Upstream};

/// The upper bounds of a histogram's buckets, in microseconds: from the proxy's own share to a long call.
const BOUNDS_US: [u64; 16] = [
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    120_000_000,
];

/// What a server is that failed for want of a login.
const NEEDS_LOGIN: &str = "needs-login";
/// The states of servers.
const UPSTREAM_STATES: [&str; 5] = [
    Status::Disabled.as_str(),
    Status::Connecting.as_str(),
    Status::Connected.as_str(),
    Status::Failed.as_str(),
    NEEDS_LOGIN,
];

/// Shows every number as Prometheus reads it: in OpenMetrics, or where `Accept` prefers it in the text format 0.0.4.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "state",
    operation_id = "getMetrics",
    responses((
        status = 200,
        description = "The numbers",
        content((String = "application/openmetrics-text"), (String = "text/plain")),
    ))
)]
pub(super) fn metrics(
    state: &State,
    worker: &Worker,
    query: Query,
    headers: &HeaderMap,
    id: &str,
) -> Result<Response<Body>, ApiError> {
    query.finish()?;
    let families = families(state, worker);
    let counters = families.iter().filter(|it| matches!(it.samples, Samples::Counters(_)));
    let counters: HashSet<&str> = counters.map(|it| it.name).collect();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(families)));
    let mut text = String::new();
    encode(&mut text, &registry)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error))?;
    let form = Exposition::wanted(headers);
    let text = form.of(text, &counters);
    let mut response = response::json(StatusCode::OK, Body::from(Bytes::from(text)), id);
    response.headers_mut().insert(CONTENT_TYPE, form.content_type());
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// All numbers of one scrape.
#[derive(Debug)]
struct Scrape(Vec<Family>);

/// A metric, and its value for each set of labels.
#[derive(Debug)]
struct Family {
    /// Without `_total`, which the format adds to counters.
    name: &'static str,
    help: &'static str,
    samples: Samples,
}

/// The values of a metric, each with its labels.
#[derive(Debug)]
enum Samples {
    Counters(Vec<(Labels, u64)>),
    Gauges(Vec<(Labels, f64)>),
    Histograms(Vec<(Labels, Durations)>),
}

type Labels = Vec<(&'static str, String)>;

impl Family {
    fn counters(
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, u64)>,
    ) -> Self {
        Self { name, help, samples: Samples::Counters(samples.into_iter().collect()) }
    }

    fn gauges(
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Self {
        Self { name, help, samples: Samples::Gauges(samples.into_iter().collect()) }
    }

    fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        Self::gauges(name, help, [(Labels::new(), value)])
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, samples } in &self.0 {
            let kind = match samples {
                Samples::Counters(_) => MetricType::Counter,
                Samples::Gauges(_) => MetricType::Gauge,
                Samples::Histograms(_) => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            match samples {
                Samples::Counters(samples) => {
                    for (labels, count) in samples {
                        labelled(&mut metric, labels, |metric| {
                            metric.encode_counter::<NoLabelSet, _, u64>(count, None)
                        })?;
                    }
                }
                Samples::Gauges(samples) => {
                    for (labels, value) in samples {
                        labelled(&mut metric, labels, |metric| metric.encode_gauge(value))?;
                    }
                }
                Samples::Histograms(samples) => {
                    for (labels, durations) in samples {
                        let (sum, count) = (seconds(durations.sum()), durations.count());
                        let buckets = buckets(durations);
                        labelled(&mut metric, labels, |metric| {
                            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
                        })?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Writes one sample. One without labels has no braces either.
fn labelled(
    metric: &mut MetricEncoder<'_>,
    labels: &Labels,
    write: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    match labels.as_slice() {
        [] => write(metric),
        labels => write(&mut metric.encode_family(&labels)?),
    }
}

fn families(state: &State, worker: &Worker) -> Vec<Family> {
    let (proxy, settings) = (&worker.proxy, worker.settings());
    let totals = proxy.calls.read();
    let spans = &proxy.spans;
    let connections = state.connections.get().into_iter().flatten();
    let connections: usize = connections.map(|open| open.load(Ordering::Relaxed)).sum();
    let left = state.certificate.get().map(|it| it.seconds_left(SystemTime::now()));
    let mut families = calls(worker, &totals);
    families.extend(upstreams(worker, &totals));
    families.extend(log(&proxy.activity.health()));
    if let Some(node) = &proxy.fleet {
        families.extend(fleet(node, &node.ledger(&proxy.activity)));
        let index = state.fleet_index.get().filter(|index| index.role() != IndexRole::None);
        let index = index.map(|index| index.report());
        families.extend(chains(&super::fleet::chains(node, index.as_ref())));
        if let Some(facts) = node.shared() {
            families.extend(shared_facts(&facts.standing()));
        }
    }
    families.extend([
        Family::gauge("mcpproxy_calls_in_flight", "Calls under way", totals.in_flight() as f64),
        Family::gauge(
            "mcpproxy_sessions",
            "Open sessions of clients",
            state.sessions.count() as f64,
        ),
        Family::gauge("mcpproxy_connections", "Open connections of clients", connections as f64),
        Family::gauge(
            "mcpproxy_tools",
            "Tools in the catalog",
            proxy.catalog.load().tools().len() as f64,
        ),
        Family::gauge(
            "mcpproxy_approvals_waiting",
            "Calls that wait for a person",
            proxy.approvals.count() as f64,
        ),
        Family::gauge(
            "mcpproxy_calls_queued",
            "Calls that wait for their turn under the limits",
            settings.policy.limits.queued() as f64,
        ),
        Family::gauge(
            "mcpproxy_config_rejected",
            "1 while the config's file holds what cannot be used, and the one before stays in force",
            bit(state.config.standing().rejected.is_some()),
        ),
        Family::gauges(
            "mcpproxy_certificate_remaining_seconds",
            "How long the listener's certificate holds still, where it has one; negative once it has expired",
            left.map(|left| (Labels::new(), left as f64)),
        ),
        Family::gauge(
            "mcpproxy_held_bytes",
            "Bytes of answers that strict holds",
            settings.held.used() as f64,
        ),
        Family::gauge(
            "mcpproxy_unjudged_bytes",
            "Bytes of answers that warn has forwarded and not judged yet",
            settings.judging_budget.used() as f64,
        ),
        Family::counters(
            "mcpproxy_search_embedding_requests",
            "Requests to the endpoint of search.embeddings, by what for and how they ended",
            RequestKind::ALL.into_iter().flat_map(|kind| {
                RequestOutcome::ALL.map(|outcome| {
                    let labels = vec![
                        ("kind", kind.as_str().to_owned()),
                        ("outcome", outcome.as_str().to_owned()),
                    ];
                    (labels, proxy.meaning.requests(kind, outcome))
                })
            }),
        ),
        Family::gauge(
            "mcpproxy_search_embedded_tools",
            "Tools that are found by meaning",
            proxy.meaning.state().map_or(0.0, |(tools, _)| tools as f64),
        ),
        Family::gauge(
            "mcpproxy_search_embeddings_up",
            "1 while the endpoint of search.embeddings is asked, 0 while it is not, or where there is none",
            proxy.meaning.state().map_or(0.0, |(_, up)| f64::from(u8::from(up))),
        ),
        Family::counters(
            "mcpproxy_engine_disagreements",
            "Answers about which the two schema engines disagreed",
            [(Labels::new(), proxy.validation_pool.disagreements())],
        ),
        Family::counters(
            "mcpproxy_spans_exported",
            "Spans that the collector of traces has taken",
            [(Labels::new(), spans.counts().exported())],
        ),
        Family::counters(
            "mcpproxy_spans_dropped",
            "Spans that were recorded and not exported, by reason",
            DropReason::ALL.map(|reason| {
                (vec![("reason", reason.as_str().to_owned())], spans.counts().dropped(reason))
            }),
        ),
        Family::gauge(
            "mcpproxy_traced_calls_waiting",
            "Traced calls that wait to be exported",
            spans.waiting() as f64,
        ),
        Family::counters(
            "mcpproxy_log_records_exported",
            "Lines of the log that the collector has taken",
            [(Labels::new(), state.tap.counts().exported())],
        ),
        Family::counters(
            "mcpproxy_log_records_dropped",
            "Lines of the log that were to be exported and were not, by reason",
            DropReason::ALL.map(|reason| {
                (vec![("reason", reason.as_str().to_owned())], state.tap.counts().dropped(reason))
            }),
        ),
        Family::counters(
            "mcpproxy_log_lines_lost",
            "Lines of the log on stderr that could not be written",
            [(Labels::new(), state.lines.lost())],
        ),
        Family::gauges(
            "mcpproxy_build_info",
            "The version that runs, with the value 1",
            [(build(), 1.0)],
        ),
    ]);
    families
}

fn build() -> Labels {
    vec![("version", build_info::VERSION.to_owned()), ("commit", build_info::COMMIT.to_owned())]
}

/// What became of calls.
fn calls(worker: &Worker, totals: &Totals) -> Vec<Family> {
    let upstreams = &worker.proxy.upstreams;
    let by_tool = worker.proxy.calls.by_tool(worker.settings().max_series);
    let calls = upstreams.iter().flat_map(|upstream| {
        let (id, of) = (upstream.id(), &by_tool);
        let series = of.iter().filter(move |(series, _)| series.server == id);
        series.map(move |(series, count)| {
            let labels = vec![
                ("server", upstream.name().to_string()),
                ("tool", series.tool.to_string()),
                ("variant", series.variant.to_owned()),
                ("status", series.outcome.as_str().to_owned()),
            ];
            (labels, *count)
        })
    });
    // Their names are those of what it is about and of what it came to.
    let halves = |[of, came_to]: [&'static str; 2], name: &str| {
        let (first, last) = name.rsplit_once('_').unwrap_or_default();
        vec![(of, first.to_owned()), (came_to, last.to_owned())]
    };
    let decisions = Decision::ALL.into_iter().map(|decision| {
        (halves(["policy", "decision"], decision.as_str()), totals.decided(decision))
    });
    let verdicts = Judged::ALL
        .into_iter()
        .map(|judged| (halves(["of", "verdict"], judged.as_str()), totals.judged(judged)));
    let refusals = Refusal::ALL
        .into_iter()
        .map(|why| (vec![("reason", why.as_str().to_owned())], totals.refused(why)));
    vec![
        Family::counters("mcpproxy_calls", "Calls of tools and other requests to servers", calls),
        Family::counters("mcpproxy_decisions", "Decisions on record", decisions),
        Family::counters(
            "mcpproxy_verdicts",
            "What judging answers and arguments came to, also where they pass",
            verdicts,
        ),
        Family::counters("mcpproxy_refusals", "Calls without an answer of a server", refusals),
    ]
}

/// How servers are, and how long their calls took.
fn upstreams(worker: &Worker, totals: &Totals) -> Vec<Family> {
    let upstreams = &worker.proxy.upstreams;
    let labels = |upstream: &Upstream| vec![("server", upstream.name().to_string())];
    let histograms = |of: fn(&crate::telemetry::call_metrics::Sums) -> &Durations| {
        let each = upstreams
            .iter()
            .map(|upstream| (labels(&upstream), of(&totals.of_server(upstream.id())).clone()));
        Samples::Histograms(each.collect())
    };
    let states = upstreams.iter().flat_map(|upstream| {
        let now = state_of(&upstream.state());
        UPSTREAM_STATES.map(|state| {
            let mut labels = labels(&upstream);
            labels.push(("state", state.to_owned()));
            (labels, bit(state == now))
        })
    });
    let enabled = upstreams.iter().map(|upstream| (labels(&upstream), upstream.state().status));
    let enabled = enabled.filter(|(_, status)| *status != Status::Disabled);
    let up = enabled.map(|(labels, status)| (labels, bit(status == Status::Connected)));
    let restarts = upstreams.iter().map(|upstream| (labels(&upstream), upstream.restarts()));
    vec![
        Family::counters(
            "mcpproxy_upstream_restarts",
            "How often the server was started or connected again, whatever the cause",
            restarts,
        ),
        Family::gauges(
            "mcpproxy_upstream_up",
            "1 while the server is connected, 0 while it is not; none of one that is disabled",
            up,
        ),
        Family::gauges(
            "mcpproxy_upstream_state",
            "1 for the state that the server is in, 0 for the others",
            states,
        ),
        Family {
            name: "mcpproxy_call_duration_seconds",
            help: "How long calls took that were sent to the server",
            samples: histograms(|sums| &sums.total),
        },
        Family {
            name: "mcpproxy_overhead_seconds",
            help: "Of that what the proxy added",
            samples: histograms(|sums| &sums.added),
        },
    ]
}

/// What a server's state is called, which is one of [`UPSTREAM_STATES`].
fn state_of(state: &ServerState) -> &'static str {
    if state.needs_login() { NEEDS_LOGIN } else { state.status.as_str() }
}

fn bit(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

/// The activity log.
fn log(health: &Health) -> [Family; 7] {
    let written = bit(health.state == Standing::Ok);
    [
        Family::gauge("mcpproxy_activity_up", "1 while the activity log is written", written),
        Family::counters(
            "mcpproxy_activity_records",
            "Records written since the start",
            [(Labels::new(), health.written)],
        ),
        Family::counters(
            "mcpproxy_activity_lost",
            "Entries that could not be recorded since the log was begun",
            [(Labels::new(), health.lost)],
        ),
        Family::gauge(
            "mcpproxy_activity_queue",
            "Calls under way or waiting to be written",
            health.queued as f64,
        ),
        Family::gauge(
            "mcpproxy_activity_lag_seconds",
            "How long the oldest record that is not durable has been on its way",
            health.lag_ms as f64 / 1e3,
        ),
        Family::gauge(
            "mcpproxy_activity_longest_sync_seconds",
            "The longest that the disk took for one batch since the start",
            health.longest_sync_ms as f64 / 1e3,
        ),
        Family::gauge(
            "mcpproxy_activity_bytes",
            "Bytes of the log on disk",
            health.disk_bytes as f64,
        ),
    ]
}

/// Nodes of the fleet whose chains are told one by one.
const MAX_CHAINS: usize = 64;

/// The fleet, as this node sees it, and its own ledger.
fn fleet(node: &FleetNode, ledger: &LedgerStanding) -> [Family; 8] {
    let living = node.living();
    let states = [NodeState::Living, NodeState::Silent, NodeState::Stopped, NodeState::Unknown];
    let count = |state| living.all().iter().filter(|node| node.state == state).count();
    let skews = living.all().iter().filter(|node| node.state == NodeState::Living);
    let skew = skews.filter_map(|node| node.skew_ms).map(i64::unsigned_abs).max();
    [
        Family::gauges(
            "mcpproxy_fleet_nodes",
            "Nodes of the fleet as this one sees them, by state",
            states.map(|state| (vec![("state", state.as_str().to_owned())], count(state) as f64)),
        ),
        Family::gauge(
            "mcpproxy_fleet_store_away",
            "1 while the fleet's store does not say who lives",
            bit(living.away.is_some()),
        ),
        Family::gauge(
            "mcpproxy_fleet_clock_skew_seconds",
            "How far the clock of a living node is from this node's, at most",
            skew.unwrap_or_default() as f64 / 1e3,
        ),
        Family::gauge(
            "mcpproxy_ledger_lag_records",
            "Records of this node that are not in the fleet's store",
            ledger.lag_records as f64,
        ),
        Family::gauge(
            "mcpproxy_ledger_lag_bytes",
            "About how many bytes those have",
            ledger.lag_bytes as f64,
        ),
        Family::gauge(
            "mcpproxy_ledger_lag_seconds",
            "How long the oldest of them has been waiting",
            ledger.lag_ms as f64 / 1e3,
        ),
        Family::counters(
            "mcpproxy_ledger_segments",
            "Segments put into the fleet's store since the start",
            [(Labels::new(), ledger.segments)],
        ),
        Family::counters(
            "mcpproxy_ledger_failures",
            "Attempts at sealing and putting that came to nothing since the start",
            [(Labels::new(), ledger.failures)],
        ),
    ]
}

/// Chains of the fleet as this node knows them. Those of more nodes than are named count in the last of them.
fn chains(seen: &[ChainSeen]) -> [Family; 3] {
    let labels = |name: &str| vec![("node", name.to_owned())];
    let of = |what: fn(&ChainSeen) -> u64| {
        let mut values: Vec<_> =
            seen.iter().take(MAX_CHAINS).map(|it| (labels(&it.node), what(it) as f64)).collect();
        if seen.len() > MAX_CHAINS {
            let rest: u64 = seen.iter().skip(MAX_CHAINS).map(what).sum();
            values.push((labels("(others)"), rest as f64));
        }
        values
    };
    [
        Family::gauges(
            "mcpproxy_fleet_chain_gaps",
            "Gaps in the chain of a node in the fleet's store, as far as this one knows it",
            of(|it| it.gaps.len() as u64),
        ),
        Family::gauges(
            "mcpproxy_fleet_chain_missing_records",
            "Records that are missing in them",
            of(|it| it.missing_records),
        ),
        Family::gauges(
            "mcpproxy_fleet_chain_faults",
            "Segments of the chain of a node that are not to be believed",
            of(|it| it.faults),
        ),
    ]
}

/// What is shared with the fleet beside the log.
fn shared_facts(standing: &FactStanding) -> [Family; 2] {
    [
        Family::gauge(
            "mcpproxy_fleet_facts_faults",
            "Objects of what the fleet shares that are passed over",
            standing.faults.len() as f64,
        ),
        Family::gauge(
            "mcpproxy_fleet_facts_age_seconds",
            "How long ago what the fleet shares was read whole",
            standing.age().unwrap_or_default().as_secs_f64(),
        ),
    ]
}

/// The count of each bucket with its upper bound in seconds. Ours are finer, and each is counted in the first whose
/// bound is not below its own.
fn buckets(durations: &Durations) -> Vec<(f64, u64)> {
    let mut counts = [0; BOUNDS_US.len() + 1];
    for (most, count) in durations.buckets() {
        let at = BOUNDS_US.partition_point(|bound| *bound < most);
        if let Some(sum) = counts.get_mut(at) {
            *sum += count;
        }
    }
    let bounds = BOUNDS_US.into_iter().map(seconds).chain([f64::INFINITY]);
    bounds.zip(counts).collect()
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
