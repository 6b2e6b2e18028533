//! Counters per five-minute bucket, which are added up for a summary without a search, and the JSON form of a summary.
//! Pure.
//!
//! The counters of a segment and bucket are written once and never changed.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::{Serialize, Serializer};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::bytes::{DecodeError, Reader, VERSION, put_bytes, put_varint};
use super::codec::HeadRef;
use super::record::{Operation, Status, Type, words};
use super::show::Timestamp;

/// Width of a time bucket in microseconds.
pub const BUCKET_US: u64 = 300 * 1_000_000;
/// Maximum number of servers and tools named in a summary.
const TOP: usize = 10;

/// Version of counters that include the status `unknown`. If no call has that status, the older [`VERSION`] is written.
const UNKNOWN_VERSION: u8 = 2;
/// Number of statuses in [`VERSION`].
const STATUSES: usize = Status::ALL.len() - 1;

/// Counters of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of tool calls by [`Status`], indexed by the code of the status minus one.
    statuses: [u64; Status::ALL.len()],
    /// Number of tool calls by [`Operation`], indexed by the code of the operation. Index 0 is for calls without an
    /// operation.
    operations: [u64; Operation::ALL.len() + 1],
    /// Number of decisions that were warnings.
    warnings: u64,
    /// Number of tool calls by server and tool.
    tools: BTreeMap<Box<str>, BTreeMap<Box<str>, u64>>,
    /// Durations of tool calls that were not refused.
    latency: Histogram,
}

impl Stats {
    /// Adds a record. Only tool calls and warnings are counted.
    pub(crate) fn add(&mut self, head: &HeadRef<'_>) {
        match head.kind {
            Type::ToolCall => {}
            Type::PolicyDecision => {
                self.warnings += u64::from(head.status == Status::Warning);
                return;
            }
            _ => return,
        }
        let calls = head.repeated;
        bump(&mut self.statuses, usize::from(head.status.code()) - 1, calls);
        bump(&mut self.operations, head.operation.map_or(0, |it| usize::from(it.code())), calls);
        let tools = match self.tools.get_mut(head.server) {
            Some(tools) => tools,
            None => self.tools.entry(head.server.into()).or_default(),
        };
        match tools.get_mut(head.tool) {
            Some(count) => *count += calls,
            None => {
                tools.insert(head.tool.into(), calls);
            }
        }
        // A refused call did not reach its server. If a call's outcome is unknown, so is its duration.
        if !matches!(head.status, Status::Unknown | Status::Rejected) {
            self.latency.add(head.duration_us, 1);
        }
    }

    /// Adds other counters.
    pub fn merge(&mut self, other: &Self) {
        self.statuses.iter_mut().zip(other.statuses).for_each(|(a, b)| *a += b);
        self.operations.iter_mut().zip(other.operations).for_each(|(a, b)| *a += b);
        self.warnings += other.warnings;
        for (server, tools) in &other.tools {
            let into = self.tools.entry(server.clone()).or_default();
            for (tool, count) in tools {
                *into.entry(tool.clone()).or_default() += count;
            }
        }
        self.latency.merge(&other.latency);
    }

    /// Number of tool calls with this status.
    pub(crate) fn with_status(&self, status: Status) -> u64 {
        self.statuses.get(usize::from(status.code()) - 1).copied().unwrap_or_default()
    }

    pub fn total(&self) -> u64 {
        self.statuses.iter().sum()
    }

    /// Number of tool calls with this stated operation type.
    pub(crate) fn with_operation(&self, operation: Option<Operation>) -> u64 {
        let place = operation.map_or(0, |it| usize::from(it.code()));
        self.operations.get(place).copied().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.total() == 0 && self.warnings == 0
    }

    pub fn encode(&self) -> Vec<u8> {
        let unknown = self.with_status(Status::Unknown);
        let mut out = vec![if unknown > 0 { UNKNOWN_VERSION } else { VERSION }];
        for count in self.statuses.iter().take(STATUSES).chain(&self.operations) {
            put_varint(&mut out, *count);
        }
        if unknown > 0 {
            put_varint(&mut out, unknown);
        }
        put_varint(&mut out, self.warnings);
        put_varint(&mut out, self.tools.len() as u64);
        for (server, tools) in &self.tools {
            put_bytes(&mut out, server.as_bytes());
            put_varint(&mut out, tools.len() as u64);
            for (tool, count) in tools {
                put_bytes(&mut out, tool.as_bytes());
                put_varint(&mut out, *count);
            }
        }
        put_varint(&mut out, self.latency.0.len() as u64);
        for (place, count) in &self.latency.0 {
            put_varint(&mut out, u64::from(*place));
            put_varint(&mut out, *count);
        }
        out
    }

    /// Decodes the output of [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let has_unknown = match reader.byte()? {
            VERSION => false,
            UNKNOWN_VERSION => true,
            other => return Err(DecodeError::Version(other)),
        };
        let mut stats = Self::default();
        for count in stats.statuses.iter_mut().take(STATUSES).chain(&mut stats.operations) {
            *count = reader.varint()?;
        }
        if has_unknown {
            bump(&mut stats.statuses, STATUSES, reader.varint()?);
        }
        stats.warnings = reader.varint()?;
        for _ in 0..reader.count()? {
            let server = reader.text()?.into();
            let mut tools = BTreeMap::new();
            for _ in 0..reader.count()? {
                tools.insert(reader.text()?.into(), reader.varint()?);
            }
            stats.tools.insert(server, tools);
        }
        for _ in 0..reader.count()? {
            let place = u16::try_from(reader.varint()?).map_err(|_| DecodeError::Value)?;
            stats.latency.0.insert(place, reader.varint()?);
        }
        reader.end()?;
        Ok(stats)
    }
}

/// Logarithmic histogram with sixteen steps per doubling: the error is at most 1/16.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Histogram(BTreeMap<u16, u64>);

impl Histogram {
    const STEP_BITS: u32 = 4;

    fn add(&mut self, value: u64, count: u64) {
        *self.0.entry(Self::place(value)).or_default() += count;
    }

    fn merge(&mut self, other: &Self) {
        for (place, count) in &other.0 {
            *self.0.entry(*place).or_default() += count;
        }
    }

    fn place(value: u64) -> u16 {
        let exponent = (u64::BITS - value.leading_zeros()).saturating_sub(Self::STEP_BITS + 1);
        ((u64::from(exponent) << Self::STEP_BITS) + (value >> exponent)) as u16
    }

    /// Midpoint of a step.
    fn value(place: u16) -> f64 {
        let exponent = (place >> Self::STEP_BITS).saturating_sub(1);
        let low = u64::from(place - (exponent << Self::STEP_BITS)) << exponent;
        low as f64 + ((1u64 << exponent) - 1) as f64 / 2.0
    }

    /// Quantile of microseconds, in milliseconds with three decimals.
    fn quantile_ms(&self, q: f64) -> f64 {
        self.quantile(q).round() / 1000.0
    }

    /// Quantile `q`: the value at or below which this fraction of all values lies.
    fn quantile(&self, q: f64) -> f64 {
        let total: u64 = self.0.values().sum();
        let wanted = ((total as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (place, count) in &self.0 {
            seen += count;
            if seen >= wanted {
                return Self::value(*place);
            }
        }
        0.0
    }
}

fn bump(counts: &mut [u64], place: usize, by: u64) {
    if let Some(count) = counts.get_mut(place) {
        *count += by;
    }
}

/// Period of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// One hour (`1h`).
    Hour,
    /// 24 hours (`24h`).
    Day,
    /// 7 days (`7d`).
    Week,
    /// 30 days (`30d`).
    Month,
}

impl Period {
    /// All periods, shortest first.
    pub const ALL: &[Self] = &[Self::Hour, Self::Day, Self::Week, Self::Month];

    /// Name in queries.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "24h",
            Self::Week => "7d",
            Self::Month => "30d",
        }
    }

    /// Length in microseconds.
    pub const fn micros(self) -> u64 {
        let hours = match self {
            Self::Hour => 1,
            Self::Day => 24,
            Self::Week => 7 * 24,
            Self::Month => 30 * 24,
        };
        hours * 3600 * 1_000_000
    }

    /// Number of buckets per point of the series: 5 minutes, 30 minutes, 3 hours, 12 hours.
    pub const fn step_buckets(self) -> u64 {
        match self {
            Self::Hour => 1,
            Self::Day => 6,
            Self::Week => 36,
            Self::Month => 144,
        }
    }

    /// First bucket of a period that ends at `now` (microseconds since 1970). The period is thus up to five
    /// minutes longer than its name; the summary states its start.
    pub const fn first_bucket(self, now: u64) -> u64 {
        now.saturating_sub(self.micros()) / BUCKET_US
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl PartialSchema for Period {
    fn schema() -> RefOr<Schema> {
        words(Self::ALL.iter().map(|it| it.as_str()))
    }
}

impl ToSchema for Period {}

/// Summary of a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub period: Period,
    /// Start in microseconds since 1970.
    pub start: u64,
    pub end: u64,
    pub stats: Stats,
    /// Time series, oldest first; each point covers [`Period::step_buckets`] buckets.
    pub points: Vec<Point>,
}

/// Tool calls of one step in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    statuses: [u64; Status::ALL.len()],
    operations: [u64; Operation::ALL.len() + 1],
    /// Durations, as in [`Stats`].
    latency: Histogram,
}

impl Point {
    fn merge(&mut self, stats: &Stats) {
        self.statuses.iter_mut().zip(stats.statuses).for_each(|(a, b)| *a += b);
        self.operations.iter_mut().zip(stats.operations).for_each(|(a, b)| *a += b);
        self.latency.merge(&stats.latency);
    }

    /// Quantile of the point's durations, as in [`Summary::latency_ms`].
    fn latency_ms(&self, q: f64) -> f64 {
        self.latency.quantile_ms(q)
    }
}

impl Summary {
    /// Empty summary of a period that ends at `now` (microseconds since 1970).
    pub fn new(period: Period, now: u64) -> Self {
        let first = period.first_bucket(now);
        let steps = (now / BUCKET_US - first) / period.step_buckets() + 1;
        let points = (0..steps).map(|_| Point::default()).collect();
        Self { period, start: first * BUCKET_US, end: now, stats: Stats::default(), points }
    }

    /// Adds counters of a bucket.
    pub fn merge(&mut self, bucket: u64, part: &Stats) {
        self.stats.merge(part);
        let step = bucket.saturating_sub(self.start / BUCKET_US) / self.period.step_buckets();
        let point = usize::try_from(step).ok().and_then(|step| self.points.get_mut(step));
        if let Some(point) = point {
            point.merge(part);
        }
    }

    /// Servers with the most calls.
    pub(crate) fn top_servers(&self) -> Vec<(String, u64)> {
        top(self.stats.tools.iter().map(|(name, tools)| (name.to_string(), tools.values().sum())))
    }

    /// Tools with the most calls, as `server:tool`.
    pub(crate) fn top_tools(&self) -> Vec<(String, u64)> {
        top(self.stats.tools.iter().flat_map(|(server, tools)| {
            tools.iter().map(move |(tool, count)| (format!("{server}:{tool}"), *count))
        }))
    }

    /// Quantile `q` of the durations in milliseconds, with an error of at most 1/16.
    pub(crate) fn latency_ms(&self, q: f64) -> f64 {
        self.stats.latency.quantile_ms(q)
    }
}

fn top(counts: impl Iterator<Item = (String, u64)>) -> Vec<(String, u64)> {
    let mut counts: Vec<_> = counts.collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts.truncate(TOP);
    counts
}

/// Tool calls of a period.
#[derive(serde::Serialize, ToSchema)]
struct Members {
    period: Period,
    /// Tool calls.
    total_count: u64,
    success_count: u64,
    error_count: u64,
    blocked_count: u64,
    /// Decisions that allowed something with a warning.
    warning_count: u64,
    rejected_count: u64,
    /// Calls that were in flight when the process ended.
    unknown_count: u64,
    by_intent: ByIntent,
    /// Servers with the most calls, at most ten.
    top_servers: Vec<Count>,
    /// Tools with the most calls, as `server:tool`, at most ten.
    top_tools: Vec<Count>,
    latency_ms: Latency,
    /// Start of the period, which may be up to five minutes longer than its name.
    #[schema(format = DateTime)]
    start_time: String,
    #[schema(format = DateTime)]
    end_time: String,
    /// Seconds covered by each entry of `over_time`: 300, 1800, 10800 or 43200, by period.
    step_seconds: u64,
    /// Tool calls over time, oldest first, including entries without calls.
    over_time: Vec<Step>,
}

/// Tool calls by stated operation type; calls without one are only in the total.
#[derive(serde::Serialize, ToSchema)]
struct ByIntent {
    read: u64,
    write: u64,
    destructive: u64,
}

impl ByIntent {
    fn of(count: impl Fn(Operation) -> u64) -> Self {
        Self {
            read: count(Operation::Read),
            write: count(Operation::Write),
            destructive: count(Operation::Destructive),
        }
    }
}

/// Number of calls.
#[derive(serde::Serialize, ToSchema)]
struct Count {
    name: String,
    count: u64,
}

/// 50 %, 95 % and 99 % quantiles of the durations of calls that were not refused, in milliseconds, accurate to 1/16.
#[derive(serde::Serialize, ToSchema)]
struct Latency {
    p50: f64,
    p95: f64,
    p99: f64,
}

/// Tool calls of one step in time, by status and by intent.
#[derive(serde::Serialize, ToSchema)]
struct Step {
    #[schema(format = DateTime)]
    start_time: String,
    success: u64,
    error: u64,
    blocked: u64,
    rejected: u64,
    unknown: u64,
    #[serde(flatten)]
    by_intent: ByIntent,
    /// Median duration in milliseconds; 0 without calls.
    p50_ms: f64,
    /// 99 % quantile of the durations in milliseconds.
    p99_ms: f64,
}

impl Members {
    fn of(summary: &Summary) -> Self {
        let (stats, step) = (&summary.stats, summary.period.step_buckets() * BUCKET_US);
        let named = |counts: Vec<(String, u64)>| {
            counts.into_iter().map(|(name, count)| Count { name, count }).collect()
        };
        let starts = (0..).map(|number: u64| summary.start + number * step);
        Self {
            period: summary.period,
            total_count: stats.total(),
            success_count: stats.with_status(Status::Success),
            error_count: stats.with_status(Status::Error),
            blocked_count: stats.with_status(Status::Blocked),
            warning_count: stats.warnings,
            rejected_count: stats.with_status(Status::Rejected),
            unknown_count: stats.with_status(Status::Unknown),
            by_intent: ByIntent::of(|operation| stats.with_operation(Some(operation))),
            top_servers: named(summary.top_servers()),
            top_tools: named(summary.top_tools()),
            latency_ms: Latency {
                p50: summary.latency_ms(0.50),
                p95: summary.latency_ms(0.95),
                p99: summary.latency_ms(0.99),
            },
            start_time: Timestamp(summary.start).to_string(),
            end_time: Timestamp(summary.end).to_string(),
            step_seconds: step / 1_000_000,
            over_time: starts.zip(&summary.points).map(Step::of).collect(),
        }
    }
}

impl Step {
    fn of((start, point): (u64, &Point)) -> Self {
        let ended = |status: Status| point.statuses.get(usize::from(status.code()) - 1).copied();
        let stated = |operation: Operation| point.operations.get(usize::from(operation.code()));
        Self {
            p50_ms: point.latency_ms(0.50),
            p99_ms: point.latency_ms(0.99),
            start_time: Timestamp(start).to_string(),
            success: ended(Status::Success).unwrap_or_default(),
            error: ended(Status::Error).unwrap_or_default(),
            blocked: ended(Status::Blocked).unwrap_or_default(),
            rejected: ended(Status::Rejected).unwrap_or_default(),
            unknown: ended(Status::Unknown).unwrap_or_default(),
            by_intent: ByIntent::of(|operation| stated(operation).copied().unwrap_or_default()),
        }
    }
}

impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Members::of(self).serialize(serializer)
    }
}

impl PartialSchema for Summary {
    fn schema() -> RefOr<Schema> {
        Members::schema()
    }
}

impl ToSchema for Summary {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        Members::schemas(schemas);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(status: Status, operation: Option<Operation>, duration_us: u64) -> HeadRef<'static> {
        HeadRef {
            status,
            operation,
            server: "github",
            tool: "issue",
            duration_us,
            overhead_us: 0,
            ..HeadRef::CALL
        }
    }

    #[test]
    fn summary_counts_calls_and_warning_decisions() {
        let mut stats = Stats::default();
        stats.add(&call(Status::Success, Some(Operation::Read), 1000));
        stats.add(&call(Status::Blocked, Some(Operation::Write), 3000));
        let mut decision = call(Status::Warning, Some(Operation::Read), 0);
        decision.kind = Type::PolicyDecision;
        stats.add(&decision);
        decision.status = Status::Blocked;
        stats.add(&decision);
        decision.kind = Type::InternalToolCall;
        decision.status = Status::Error;
        stats.add(&decision);
        assert_eq!(Stats::decode(&stats.encode()), Ok(stats.clone()));

        let mut summary = Summary::new(Period::Hour, 0);
        summary.merge(0, &stats);
        let json = serde_json::to_value(&summary).unwrap();
        let expected = serde_json::json!({
            "period": "1h", "total_count": 2, "success_count": 1, "error_count": 0,
            "blocked_count": 1, "warning_count": 1, "rejected_count": 0, "unknown_count": 0,
            "by_intent": {"read": 1, "write": 1, "destructive": 0},
            "top_servers": [{"name": "github", "count": 2}],
            "top_tools": [{"name": "github:issue", "count": 2}],
            "start_time": "1970-01-01T00:00:00.000Z", "end_time": "1970-01-01T00:00:00.000Z",
            "step_seconds": 300,
            "over_time": [{
                "start_time": "1970-01-01T00:00:00.000Z", "success": 1, "error": 0, "blocked": 1,
                "rejected": 0, "unknown": 0, "read": 1, "write": 1, "destructive": 0,
                "p50_ms": 1.008, "p99_ms": 3.008,
            }],
        });
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&json[key], value, "{key}");
        }
        let p50 = json["latency_ms"]["p50"].as_f64().unwrap();
        let p99 = json["latency_ms"]["p99"].as_f64().unwrap();
        assert!((0.9375..=1.0625).contains(&p50) && (2.8125..=3.1875).contains(&p99), "{json}");
    }

    #[test]
    fn counted_refusals_count_as_calls_and_not_as_latency() {
        let mut stats = Stats::default();
        stats.add(&call(Status::Success, Some(Operation::Read), 1000));
        let refused = call(Status::Rejected, Some(Operation::Write), 7);
        stats.add(&HeadRef { repeated: 90, ..refused });
        assert_eq!((stats.total(), stats.with_status(Status::Rejected)), (91, 90));
        assert_eq!(stats.with_operation(Some(Operation::Write)), 90);
        assert_eq!(stats.latency.0.values().sum::<u64>(), 1);
        let mut summary = Summary::new(Period::Hour, 0);
        summary.merge(0, &stats);
        assert_eq!(summary.top_tools(), [("github:issue".to_owned(), 91)]);
    }

    #[test]
    fn act_1_unknown_outcomes_use_a_new_version_only_when_present() {
        let mut stats = Stats::default();
        stats.add(&call(Status::Success, Some(Operation::Write), 1000));
        assert_eq!(stats.encode()[0], VERSION);
        stats.add(&call(Status::Unknown, Some(Operation::Write), 0));
        assert_eq!(stats.encode()[0], UNKNOWN_VERSION);
        assert_eq!(Stats::decode(&stats.encode()), Ok(stats.clone()));
        assert_eq!((stats.total(), stats.with_status(Status::Unknown)), (2, 1));
        assert_eq!(stats.latency.0.values().sum::<u64>(), 1, "an unknown outcome has no duration");
    }

    #[test]
    fn points_cover_the_period_and_sum_to_its_total() {
        let now = 1_767_225_600_000_000;
        let mut one = Stats::default();
        one.add(&call(Status::Success, Some(Operation::Read), 1000));
        for (period, points) in
            [(Period::Hour, 13), (Period::Day, 49), (Period::Week, 57), (Period::Month, 61)]
        {
            let mut summary = Summary::new(period, now);
            assert_eq!(summary.points.len(), points, "{}", period.as_str());
            for bucket in period.first_bucket(now)..=now / BUCKET_US {
                summary.merge(bucket, &one);
            }
            let full: u64 =
                summary.points.iter().map(|point| point.statuses.iter().sum::<u64>()).sum();
            assert_eq!(full, summary.stats.total(), "{}", period.as_str());
            assert_eq!(summary.points[0].operations.iter().sum::<u64>(), period.step_buckets());
        }
    }

    proptest! {
        #[test]
        fn histogram_steps_are_ordered_and_accurate_to_a_sixteenth(a: u64, b: u64) {
            let (a, b) = (a.min(b) >> 1, a.max(b) >> 1);
            prop_assert!(Histogram::place(a) <= Histogram::place(b));
            let shown = Histogram::value(Histogram::place(a));
            prop_assert!((shown - a as f64).abs() <= a as f64 / 16.0, "{} {}", a, shown);
        }

        #[test]
        fn arbitrary_bytes_are_read_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(stats) = Stats::decode(&bytes) {
                prop_assert_eq!(Stats::decode(&stats.encode()), Ok(stats));
            }
        }
    }
}
