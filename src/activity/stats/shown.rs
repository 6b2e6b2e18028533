//! A summary as it is shown: the members of its JSON, and their description. Pure.

use serde::ser::{Serialize, Serializer};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{BUCKET_US, Period, Point, Summary};
use crate::activity::record::{Operation, Status};
use crate::activity::show::Timestamp;

/// What a period's tool calls came to.
#[derive(serde::Serialize, ToSchema)]
struct Members {
    period: Period,
    /// Tool calls.
    total_count: u64,
    success_count: u64,
    error_count: u64,
    blocked_count: u64,
    /// Decisions that let something pass with a warning.
    warning_count: u64,
    rejected_count: u64,
    /// Calls that were under way when the process ended.
    unknown_count: u64,
    by_intent: ByIntent,
    /// Those with the most calls, at most ten.
    top_servers: Vec<Count>,
    /// The same, as `server:tool`.
    top_tools: Vec<Count>,
    latency_ms: Latency,
    /// Up to five minutes more than the period's length ago.
    #[schema(format = DateTime)]
    start_time: String,
    #[schema(format = DateTime)]
    end_time: String,
    /// What each entry of `over_time` covers: 300, 1800, 10800 or 43200, by period.
    step_seconds: u64,
    /// Tool calls over time, oldest first, entries without calls among them.
    over_time: Vec<Step>,
}

/// Tool calls by the operation type they stated; those that stated none are in the total only.
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

/// How many calls went there.
#[derive(serde::Serialize, ToSchema)]
struct Count {
    name: String,
    count: u64,
}

/// What half, 95 % and 99 % of the calls stayed at or below, to 1/16.
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
    /// What half of them stayed at or below, in milliseconds; 0 without calls.
    p50_ms: f64,
    /// The same of 99 %.
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
