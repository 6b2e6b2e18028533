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
    let is_forward = matches!(question, RecordQuestion::Forward { .. });
    let read = move || {
        // Whoever asked may wait no longer: what is still read for them takes its place.
        let _place = place;
        record_answers::answer(&logs, question)
    };
    let answered = match is_forward {
        // Whoever reads all has time.
        true => activity.aside(move |_| read()).await.map_err(NoAnswer::Query).flatten(),
        false => tokio::task::spawn_blocking(read).await.unwrap_or(Err(NoAnswer::Question)),
    };
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
