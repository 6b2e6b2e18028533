//! `/metrics`: metrics in OpenMetrics 1.0 or in Prometheus' text format 0.0.4, depending on the client's `Accept`.
//!
//! All values are read at the scrape; none is stored here. The number of series is limited by `telemetry.max_series`
//! and by the number of servers. The endpoint requires the API key because labels contain names of servers and tools.
//!
//! For these metrics, the formats differ only in the name under which a counter is described (with `_total` in the text
//! format) and in the end marker.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::fleet::ChainSeen;
use super::request::ApiRequest;
use super::response;
use super::response::ApiError;
use crate::api::State;
use mcpproxy_activity::{Health, Standing};
use mcpproxy_catalog::embeddings::{RequestKind, RequestOutcome};
use mcpproxy_downstream::body::Body;
use mcpproxy_fleet::facts::FactStanding;
use mcpproxy_fleet::failure_detector::NodeState;
use mcpproxy_fleet::heartbeat::LedgerStanding;
use mcpproxy_fleet::{FleetNode, IndexRole};
use mcpproxy_gateway::proxy::Worker;
use mcpproxy_gateway::telemetry::build_info;
use mcpproxy_gateway::telemetry::call_metrics::{Decision, Durations, Judged, RefusalKind, Totals};
use mcpproxy_gateway::telemetry::export_queue::DropReason;
use mcpproxy_upstream::Upstream;
use mcpproxy_upstream::supervisor::Status;

/// Upper bounds of histogram buckets in microseconds, from the proxy's own overhead to a long call.
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

/// Returns all metrics in OpenMetrics, or in Prometheus' text format 0.0.4 if `Accept` prefers it.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "state",
    operation_id = "getMetrics",
    responses((
        status = 200,
        description = "The metrics",
        content((String = "application/openmetrics-text"), (String = "text/plain")),
    ))
)]
pub(super) async fn metrics(
    ApiRequest { state, worker, parts, id, query, .. }: ApiRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    query?.finish()?;
    let families = families(state, worker);
    let form = Exposition::wanted(&parts.headers);
    let text = form.text(&families);
    let mut response = response::json(StatusCode::OK, Body::from(Bytes::from(text)), id);
    response.headers_mut().insert(CONTENT_TYPE, form.content_type());
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// A metric with a value for each set of labels.
#[derive(Debug)]
struct Family {
    /// Metric name without `_total`, which the format appends to counters.
    name: &'static str,
    help: &'static str,
    samples: Samples,
}

/// Values of a metric with their labels.
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

/// Writes a sample. `le`, the upper bound of a bucket, is written first.
fn sample(text: &mut String, name: [&str; 2], le: Option<&str>, labels: &Labels, value: &str) {
    text.extend(name);
    let le = le.map(|le| ("le", le));
    let labels = le.into_iter().chain(labels.iter().map(|(name, value)| (*name, value.as_str())));
    let mut before = '{';
    for (name, value) in labels {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{before}{name}=\"{value}\"");
        before = ',';
    }
    text.push_str(if before == ',' { "} " } else { " " });
    text.extend([value, "\n"]);
}

/// Formats a number as a float, with a decimal point.
fn float(value: f64) -> String {
    let number = value.to_string();
    let point = if value.is_finite() && !number.contains('.') { ".0" } else { "" };
    number + point
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
    if let Some(node) = proxy.nodes.fleet_node() {
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
            "Calls waiting for approval",
            proxy.approvals.count() as f64,
        ),
        Family::gauge(
            "mcpproxy_calls_queued",
            "Calls queued by the limits",
            settings.policy.limits.queued() as f64,
        ),
        Family::gauge(
            "mcpproxy_config_rejected",
            "1 while the config file is invalid and the previous config stays in force",
            bit(state.config.standing().rejected.is_some()),
        ),
        Family::gauges(
            "mcpproxy_certificate_remaining_seconds",
            "Remaining validity of the listener's certificate, if it has one; negative once expired",
            left.map(|left| (Labels::new(), left as f64)),
        ),
        Family::gauge(
            "mcpproxy_held_bytes",
            "Bytes of results held for validation in strict mode",
            settings.held.used() as f64,
        ),
        Family::gauge(
            "mcpproxy_unjudged_bytes",
            "Bytes of results forwarded in warn mode and not validated yet",
            settings.judging_budget.used() as f64,
        ),
        Family::counters(
            "mcpproxy_search_embedding_requests",
            "Requests to the endpoint of search.embeddings, by kind and outcome",
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
            "Tools with an embedding",
            proxy.meaning.state().map_or(0.0, |(tools, _)| tools as f64),
        ),
        Family::gauge(
            "mcpproxy_search_embeddings_up",
            "1 while the endpoint of search.embeddings is used, 0 while it is not or if there is none",
            proxy.meaning.state().map_or(0.0, |(_, up)| f64::from(u8::from(up))),
        ),
        Family::counters(
            "mcpproxy_engine_disagreements",
            "Results about which the two schema engines disagreed",
            [(Labels::new(), proxy.validation_pool.disagreements())],
        ),
        Family::counters(
            "mcpproxy_spans_exported",
            "Spans accepted by the trace collector",
            [(Labels::new(), spans.counts().exported())],
        ),
        Family::counters(
            "mcpproxy_spans_dropped",
            "Spans that were recorded but not exported, by reason",
            DropReason::ALL.map(|reason| {
                (vec![("reason", reason.as_str().to_owned())], spans.counts().dropped(reason))
            }),
        ),
        Family::gauge(
            "mcpproxy_traced_calls_waiting",
            "Traced calls waiting to be exported",
            spans.waiting() as f64,
        ),
        Family::counters(
            "mcpproxy_log_records_exported",
            "Log lines accepted by the log collector",
            [(Labels::new(), state.tap.counts().exported())],
        ),
        Family::counters(
            "mcpproxy_log_records_dropped",
            "Log lines that were not exported, by reason",
            DropReason::ALL.map(|reason| {
                (vec![("reason", reason.as_str().to_owned())], state.tap.counts().dropped(reason))
            }),
        ),
        Family::counters(
            "mcpproxy_log_lines_lost",
            "Log lines that could not be written to stderr",
            [(Labels::new(), state.lines.lost())],
        ),
        Family::gauges(
            "mcpproxy_build_info",
            "The running version; the value is 1",
            [(build(), 1.0)],
        ),
    ]);
    families
}

fn build() -> Labels {
    vec![("version", build_info::VERSION.to_owned()), ("commit", build_info::COMMIT.to_owned())]
}

/// Outcomes of calls.
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
    // A name consists of a subject and an outcome, joined by its last underscore; each becomes a label.
    let halves = |[subject, outcome]: [&'static str; 2], name: &str| {
        let (first, last) = name.rsplit_once('_').unwrap_or_default();
        vec![(subject, first.to_owned()), (outcome, last.to_owned())]
    };
    let decisions = Decision::ALL.into_iter().map(|decision| {
        (halves(["policy", "decision"], decision.as_str()), totals.decided(decision))
    });
    let verdicts = Judged::ALL
        .into_iter()
        .map(|judged| (halves(["of", "verdict"], judged.as_str()), totals.judged(judged)));
    let refusals = RefusalKind::ALL
        .into_iter()
        .map(|why| (vec![("reason", why.as_str().to_owned())], totals.refused(why)));
    vec![
        Family::counters("mcpproxy_calls", "Calls of tools and other requests to servers", calls),
        Family::counters("mcpproxy_decisions", "Recorded decisions", decisions),
        Family::counters(
            "mcpproxy_verdicts",
            "Results of validating results and arguments, including valid ones",
            verdicts,
        ),
        Family::counters("mcpproxy_refusals", "Calls without a response from a server", refusals),
    ]
}

/// State of servers, and durations of their calls.
fn upstreams(worker: &Worker, totals: &Totals) -> Vec<Family> {
    let upstreams = &worker.proxy.upstreams;
    let labels = |upstream: &Upstream| vec![("server", upstream.name().to_string())];
    let histograms = |of: fn(&mcpproxy_gateway::telemetry::call_metrics::Sums) -> &Durations| {
        let each = upstreams
            .iter()
            .map(|upstream| (labels(&upstream), of(&totals.of_server(upstream.id())).clone()));
        Samples::Histograms(each.collect())
    };
    let states = upstreams.iter().flat_map(|upstream| {
        let now = upstream.state().status;
        Status::ALL.map(|state| {
            let mut labels = labels(&upstream);
            labels.push(("state", state.as_str().to_owned()));
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
            "Restarts and reconnects of the server",
            restarts,
        ),
        Family::gauges(
            "mcpproxy_upstream_up",
            "1 while the server is connected, 0 while it is not; absent if it is disabled",
            up,
        ),
        Family::gauges(
            "mcpproxy_upstream_state",
            "1 for the current state of the server, 0 for the others",
            states,
        ),
        Family {
            name: "mcpproxy_call_duration_seconds",
            help: "Duration of calls sent to the server",
            samples: histograms(|sums| &sums.total),
        },
        Family {
            name: "mcpproxy_overhead_seconds",
            help: "Part of the duration added by the proxy",
            samples: histograms(|sums| &sums.added),
        },
    ]
}

fn bit(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

/// Metric families of the activity log.
fn log(health: &Health) -> [Family; 7] {
    let written = bit(health.state == Standing::Ok);
    [
        Family::gauge("mcpproxy_activity_up", "1 while the activity log can be written", written),
        Family::counters(
            "mcpproxy_activity_records",
            "Records written since the start",
            [(Labels::new(), health.written)],
        ),
        Family::counters(
            "mcpproxy_activity_lost",
            "Entries that could not be recorded since the log was created",
            [(Labels::new(), health.lost)],
        ),
        Family::gauge(
            "mcpproxy_activity_queue",
            "Calls in flight or waiting to be written",
            health.queued as f64,
        ),
        Family::gauge(
            "mcpproxy_activity_lag_seconds",
            "Age of the oldest record that is not durable yet",
            health.lag_ms as f64 / 1e3,
        ),
        Family::gauge(
            "mcpproxy_activity_longest_sync_seconds",
            "Longest sync of one batch since the start",
            health.longest_sync_ms as f64 / 1e3,
        ),
        Family::gauge(
            "mcpproxy_activity_bytes",
            "Size of the log on disk",
            health.disk_bytes as f64,
        ),
    ]
}

/// Maximum number of nodes whose chains are exported individually.
const MAX_CHAINS: usize = 64;

/// The fleet as seen by this node, and its own ledger.
fn fleet(node: &FleetNode, ledger: &LedgerStanding) -> [Family; 8] {
    let living = node.living();
    let states = [NodeState::Alive, NodeState::Dead, NodeState::Stopped, NodeState::Unknown];
    let count = |state| living.all().iter().filter(|node| node.state == state).count();
    let skews = living.all().iter().filter(|node| node.state == NodeState::Alive);
    let skew = skews.filter_map(|node| node.skew_ms).map(i64::unsigned_abs).max();
    [
        Family::gauges(
            "mcpproxy_fleet_nodes",
            "Nodes of the fleet as seen by this one, by state",
            states.map(|state| (vec![("state", state.as_str().to_owned())], count(state) as f64)),
        ),
        Family::gauge(
            "mcpproxy_fleet_store_away",
            "1 while the fleet's store cannot be reached",
            bit(living.away.is_some()),
        ),
        Family::gauge(
            "mcpproxy_fleet_clock_skew_seconds",
            "Maximum clock difference between this node and a living one",
            skew.unwrap_or_default() as f64 / 1e3,
        ),
        Family::gauge(
            "mcpproxy_ledger_lag_records",
            "Records of this node that are not in the fleet's store yet",
            ledger.lag_records as f64,
        ),
        Family::gauge(
            "mcpproxy_ledger_lag_bytes",
            "Approximate size of those records",
            ledger.lag_bytes as f64,
        ),
        Family::gauge(
            "mcpproxy_ledger_lag_seconds",
            "Age of the oldest of those records",
            ledger.lag_ms as f64 / 1e3,
        ),
        Family::counters(
            "mcpproxy_ledger_segments",
            "Segments uploaded to the fleet's store since the start",
            [(Labels::new(), ledger.segments)],
        ),
        Family::counters(
            "mcpproxy_ledger_failures",
            "Failed attempts to seal and upload a segment since the start",
            [(Labels::new(), ledger.failures)],
        ),
    ]
}

/// Chains of the fleet as known to this node. Nodes beyond [`MAX_CHAINS`] are combined in one sample.
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
            "Gaps in the chain of a node in the fleet's store, as known to this node",
            of(|it| it.gaps.len() as u64),
        ),
        Family::gauges(
            "mcpproxy_fleet_chain_missing_records",
            "Records missing in those gaps",
            of(|it| it.missing_records),
        ),
        Family::gauges(
            "mcpproxy_fleet_chain_faults",
            "Invalid segments in the chain of a node",
            of(|it| it.faults),
        ),
    ]
}

/// State shared with the fleet, except for the log.
fn shared_facts(standing: &FactStanding) -> [Family; 2] {
    [
        Family::gauge(
            "mcpproxy_fleet_facts_faults",
            "Ignored objects of the fleet's shared state",
            standing.faults.len() as f64,
        ),
        Family::gauge(
            "mcpproxy_fleet_facts_age_seconds",
            "Time since the fleet's shared state was last read completely",
            standing.age().unwrap_or_default().as_secs_f64(),
        ),
    ]
}

/// Writes the buckets with their upper bounds in seconds. Internal buckets are finer; each is counted in the first
/// exported bucket whose bound is at least its own.
fn buckets(text: &mut String, name: &str, labels: &Labels, durations: &Durations) {
    let mut counts = [0; BOUNDS_US.len() + 1];
    for (max, count) in durations.buckets() {
        let at = BOUNDS_US.partition_point(|bound| *bound < max);
        if let Some(sum) = counts.get_mut(at) {
            *sum += count;
        }
    }
    let bounds = BOUNDS_US.into_iter().map(|bound| float(seconds(bound)));
    let mut sum = 0;
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
        sum += count;
        sample(text, [name, "_bucket"], Some(&bound), labels, &sum.to_string());
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

const OPEN_METRICS: &str = "application/openmetrics-text";
const TEXT: &str = "text/plain";

impl Exposition {
    /// Negotiates the format, which is OpenMetrics unless the client prefers the text format.
    pub(super) fn wanted(headers: &HeaderMap) -> Self {
        let accepts: Vec<&str> =
            headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let quality = |kind: &str| {
            let (all_of, _) = kind.split_once('/').unwrap_or_default();
            let ranges = [kind, &format!("{all_of}/*"), "*/*"];
            // The most specific range counts.
            ranges.into_iter().find_map(|range| quality(&accepts, range)).unwrap_or_default()
        };
        match quality(TEXT) > quality(OPEN_METRICS) {
            true => Self::Text,
            false => Self::OpenMetrics,
        }
    }

    pub(super) const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        })
    }

    /// The families in this format.
    fn text(self, families: &[Family]) -> String {
        let mut text = String::new();
        for Family { name, help, samples } in families {
            let (kind, suffix) = match (samples, self) {
                (Samples::Counters(_), Self::Text) => ("counter", "_total"),
                (Samples::Counters(_), Self::OpenMetrics) => ("counter", ""),
                (Samples::Gauges(_), _) => ("gauge", ""),
                (Samples::Histograms(_), _) => ("histogram", ""),
            };
            let described = format!("{name}{suffix}");
            let _ = write!(text, "# HELP {described} {help}\n# TYPE {described} {kind}\n");
            match samples {
                Samples::Counters(samples) => {
                    for (labels, count) in samples {
                        sample(&mut text, [*name, "_total"], None, labels, &count.to_string());
                    }
                }
                Samples::Gauges(samples) => {
                    for (labels, value) in samples {
                        sample(&mut text, [*name, ""], None, labels, &float(*value));
                    }
                }
                Samples::Histograms(samples) => {
                    for (labels, durations) in samples {
                        let (sum, count) = (float(seconds(durations.sum())), durations.count());
                        sample(&mut text, [*name, "_sum"], None, labels, &sum);
                        sample(&mut text, [*name, "_count"], None, labels, &count.to_string());
                        buckets(&mut text, name, labels, durations);
                    }
                }
            }
        }
        if self == Self::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

/// Quality of a media range in thousandths; `None` if it is not listed.
fn quality(accepts: &[&str], range: &str) -> Option<u16> {
    let named = accepts.iter().flat_map(|accept| accept.split(',')).filter_map(|one| {
        let mut parts = one.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(range) {
            return None;
        }
        let weight = parts.find_map(|it| it.strip_prefix("q=").or_else(|| it.strip_prefix("Q=")));
        Some(weight.map_or(1000, |weight| thousandths(weight).unwrap_or_default()))
    });
    named.max()
}

fn thousandths(weight: &str) -> Option<u16> {
    let (whole, parts) = weight.split_once('.').unwrap_or((weight, ""));
    let digits = parts.len() <= 3 && parts.bytes().all(|byte| byte.is_ascii_digit());
    let parts: u16 = digits.then(|| format!("{parts:0<3}"))?.parse().ok()?;
    let sum = whole.parse::<u16>().ok()?.checked_mul(1000)?.checked_add(parts)?;
    (sum <= 1000).then_some(sum)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn metrics_format_follows_the_accept_header() {
        use Exposition::{OpenMetrics, Text};
        // These are the headers of Prometheus 2.53 and 3.
        const TWO: &str = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        const THREE: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.3";
        for (accepts, expected) in [
            (&[][..], OpenMetrics),
            (&["*/*"], OpenMetrics),
            (&["text/plain"], Text),
            (&["TEXT/PLAIN ; version=0.0.4"], Text),
            (&["text/*"], Text),
            (&["text/plain;version=0.0.4;q=0.3, application/openmetrics-text"], OpenMetrics),
            (&["application/openmetrics-text;q=0.2", "text/plain;q=0.25"], Text),
            (&["application/openmetrics-text;q=0, */*;q=0.1"], Text),
            (&["text/plain;q=0"], OpenMetrics),
            (&["text/plain;q=nonsense"], OpenMetrics),
            (&["text/plain;q=9.9"], OpenMetrics),
            (&["application/json"], OpenMetrics),
            (&[TWO], OpenMetrics),
            (&[THREE], OpenMetrics),
        ] {
            let mut headers = HeaderMap::new();
            for accept in accepts {
                headers.append(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(Exposition::wanted(&headers), expected, "{accepts:?}");
        }
    }

    #[test]
    fn formats_differ_in_the_description_of_counters_and_the_end_marker() {
        let label = |value: &str| vec![("x", value.to_owned()), ("y", String::new())];
        let families = [
            Family::counters("a", "What a is", [(label("# TYPE a \n\"\\"), 1)]),
            Family::gauges("ab", "a", [(Labels::new(), 2.0), (label("é"), 0.000_025)]),
        ];
        let samples = "a_total{x=\"# TYPE a \\n\\\"\\\\\",y=\"\"} 1\n\
            # HELP ab a\n# TYPE ab gauge\nab 2.0\nab{x=\"é\",y=\"\"} 0.000025\n";
        let expected = format!("# HELP a_total What a is\n# TYPE a_total counter\n{samples}");
        assert_eq!(Exposition::Text.text(&families), expected);
        let expected = format!("# HELP a What a is\n# TYPE a counter\n{samples}# EOF\n");
        assert_eq!(Exposition::OpenMetrics.text(&families), expected);
    }
}
