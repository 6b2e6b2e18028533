//! Answers that need input first (MCP 2026-07-28 §Multi Round-Trip Requests): the questions of each
//! round, and the sealed state that tells which one it is.

use rmcp::model::{
    ClientCapabilities, ErrorData, InputRequest, InputRequests, InputRequiredResult,
    InputResponses, RequestStateCodec,
};
use serde::Deserialize;
use serde_json::Value;

/// Long enough for the codec; it guards nothing but a test.
const KEY: &[u8] = b"the conformance backend's own key, which is no secret";

/// The questions of one tool or prompt before it answers.
#[derive(Deserialize)]
pub(crate) struct Rounds {
    ask: Vec<InputRequests>,
    /// The answer, with `{question}` where what the client said goes.
    done: String,
    /// Whether the round stands in a sealed state.
    #[serde(default)]
    sealed: bool,
    /// Whether only what the client is able to do is asked.
    #[serde(default)]
    able: bool,
}

/// Seals rounds into `requestState` and opens them again.
pub(crate) struct Seal(RequestStateCodec);

impl Seal {
    pub(crate) fn new() -> Self {
        Self(RequestStateCodec::try_new(KEY).expect("the key is long enough"))
    }

    fn round(&self, state: &str) -> Result<usize, ErrorData> {
        let opened = self.0.open_json(state);
        opened.map_err(|_| ErrorData::invalid_params("requestState is not as it was given", None))
    }
}

impl Rounds {
    /// The text at the end, or what to ask next.
    pub(crate) fn next(
        &self,
        seal: &Seal,
        able: &ClientCapabilities,
        answers: Option<&InputResponses>,
        state: Option<&str>,
    ) -> Result<Result<String, InputRequiredResult>, ErrorData> {
        let round = state.map_or(Ok(0), |state| seal.round(state))?;
        let wanted = self.questions(round, able);
        // The first call of a sealed exchange has no state, whatever else it has.
        let begun = !self.sealed || state.is_some();
        let given = |name: &String| answers.and_then(|all| all.get(name)).is_some_and(usable);
        let answered = begun && wanted.keys().all(given);
        let next = if answered { round + 1 } else { round };
        let questions = self.questions(next, able);
        if answered && questions.is_empty() {
            let said = |name: &str| answers?.get(name).map(Value::to_string);
            return Ok(Ok(self.done(said)));
        }
        let state = self.sealed.then(|| seal.0.seal_json(&next)).transpose();
        let state = state.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(Err(InputRequiredResult::new(Some(questions), state)))
    }

    fn questions(&self, round: usize, able: &ClientCapabilities) -> InputRequests {
        let mut questions = self.ask.get(round).cloned().unwrap_or_default();
        questions.retain(|_, question| !self.able || can(able, question));
        questions
    }

    fn done(&self, said: impl Fn(&str) -> Option<String>) -> String {
        let mut text = self.done.clone();
        for name in self.ask.iter().flat_map(InputRequests::keys) {
            text = text.replace(&format!("{{{name}}}"), &said(name).unwrap_or_default());
        }
        text
    }
}

/// Whether an answer has the form of one: what else it should be, the suite does not ask.
fn usable(answer: &Value) -> bool {
    answer.is_object()
}

fn can(able: &ClientCapabilities, question: &InputRequest) -> bool {
    match question {
        InputRequest::CreateMessage(_) => able.sampling.is_some(),
        InputRequest::Elicitation(_) => able.elicitation.is_some(),
        InputRequest::ListRoots(_) => able.roots.is_some(),
        // rmcp may learn more of them; none is in the table.
        _ => false,
    }
}
