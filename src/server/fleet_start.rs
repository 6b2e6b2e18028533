//! How a node takes its place in its fleet and begins to seal, and what it says of itself that only the whole program knows.

use std::sync::Arc;

use tokio::runtime::{Handle, LocalRuntime};

use super::app_state::AppState;
use crate::activity::Activity;
use crate::fleet::ledger::{EnteredFleet, LedgerSettings};
use crate::fleet::{FleetLedger, JoinError, NodeVitals, ProgramBuild, ledger};
use crate::telemetry::build_info;

/// Takes the node's place. Blocks.
pub(super) fn enter(
    settings: LedgerSettings,
    activity: &Activity,
    runtime: &LocalRuntime,
) -> Result<EnteredFleet, JoinError> {
    let build = ProgramBuild { version: build_info::VERSION, commit: build_info::COMMIT };
    runtime.block_on(ledger::enter(settings, build, activity))
}

/// Begins to seal, and to say that the node lives.
pub(super) fn start(entered: EnteredFleet, shared: &AppState, runtime: &Handle) -> FleetLedger {
    let (config, sessions) = (shared.api.config.clone(), Arc::clone(&shared.sessions));
    let vitals = Arc::new(move || NodeVitals {
        config: config.standing().digest(),
        sessions: sessions.count() as u64,
    });
    FleetLedger::start(entered, shared.proxy.activity.clone(), vitals, runtime)
}
