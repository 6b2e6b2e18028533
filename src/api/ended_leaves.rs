//! An approval that stands and is denied after all: that is durable for the whole fleet before whoever denies it is told that it
//! counts, so that no crash and no full disk lets the other nodes go on with it.

use http::StatusCode;

use super::response::ApiError;
use crate::fleet::FleetNode;
use crate::fleet::facts::FactKind;
use crate::proxy::Worker;

/// Tells the fleet that the approval of that id stands no more, if it was ended here and that is not told yet.
///
/// # Errors
/// It cannot be made durable: it is ended on this node alone.
pub(super) async fn tell_end(worker: &Worker, id: &str) -> Result<(), ApiError> {
    let room = &worker.proxy.approvals;
    let Some(key) = room.untold_end(id) else { return Ok(()) };
    let Some(facts) = worker.proxy.fleet.as_deref().and_then(FleetNode::shared).cloned() else {
        // There is nobody to be told.
        room.leaves_told(&[key]);
        return Ok(());
    };
    let told = tokio::task::spawn_blocking(move || {
        let node = facts.node().clone();
        facts.change(|set, _| set.forbid(&node, FactKind::Leave, key.as_str())).map(drop)
    });
    let why = match told.await {
        // Whoever keeps both in step finds that it is told.
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    let text = format!(
        "Approval {id} is ended on this node; the other nodes could not be told: {why}. Deny it once more"
    );
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text))
}
