//! Questions of other nodes about records, answered beside the workers: of this node's log and of its copies.

use bytes::Bytes;
use http::{Response, StatusCode};

use super::app_state::AppState;
use crate::downstream::body::Body;
use crate::fleet::FleetLogs;
use crate::fleet::record_answers::{self, NoAnswer};
use crate::fleet::record_questions::RecordQuestion;

/// Answers a question: 400 for what is none, 503 where too many are answered already, or records on their way do not arrive.
pub(super) async fn answer(shared: &AppState, asked: &Bytes) -> Response<Body> {
    let Some(index) = shared.api.fleet_index.get() else {
        return status(StatusCode::SERVICE_UNAVAILABLE);
    };
    let Some(question) = RecordQuestion::decode(asked) else {
        return status(StatusCode::BAD_REQUEST);
    };
    let Some(place) = index.enter() else { return status(StatusCode::SERVICE_UNAVAILABLE) };
    let activity = shared.proxy.activity.clone();
    let logs = FleetLogs::new(activity.clone(), Some(index.clone()), None);
    let answered = match question {
        // Whoever reads all has time.
        forward @ RecordQuestion::Forward { .. } => {
            let read = move |_: &_| record_answers::answer(&logs, forward);
            activity.aside(read).await.map_err(NoAnswer::Query).flatten()
        }
        question => {
            let read = move || record_answers::answer(&logs, question);
            tokio::task::spawn_blocking(read).await.unwrap_or(Err(NoAnswer::Question))
        }
    };
    drop(place);
    match answered {
        Ok(bytes) => Response::new(Body::from(Bytes::from(bytes))),
        Err(NoAnswer::Question) => status(StatusCode::BAD_REQUEST),
        Err(NoAnswer::Query(error)) => {
            tracing::warn!(%error, "records cannot be read for another node");
            status(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}
