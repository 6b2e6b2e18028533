//! Answers that need input first (MCP 2026-07-28 §Multi Round-Trip Requests): the questions of each round, and the
//! sealed state that identifies the round.

use rmcp::model::{
    ClientCapabilities, ErrorData, InputRequest, InputRequests, InputRequiredResult,
    InputResponses, RequestStateCodec,
};
use serde::Deserialize;
use serde_json::Value;

/// Long enough for the codec. It is used in tests only and need not be secret.
const KEY: &[u8] = b"the conformance backend's own key, which is no secret";

/// The questions of one tool or prompt, asked before it answers.
#[derive(Deserialize)]
pub(crate) struct Rounds {
    ask: Vec<InputRequests>,
    /// Template of the final answer, in which `{question}` is replaced by the client's answer to that question.
    done: String,
    /// Whether the number of the round is kept in a sealed state.
    #[serde(default)]
    sealed: bool,
    /// Whether only questions are asked for which the client has declared the capability.
    #[serde(default)]
    able: bool,
}

/// Seals the number of a round into `requestState`, and opens it again.
pub(crate) struct Seal(RequestStateCodec);

impl Seal {
    pub(crate) fn new() -> Self {
        Self(RequestStateCodec::try_new(KEY).expect("the key is long enough"))
    }

    fn round(&self, state: &str) -> Result<usize, ErrorData> {
        let opened = self.0.open_json(state);
        opened.map_err(|_| ErrorData::invalid_params("requestState was altered", None))
    }
}

impl Rounds {
    /// The final text, or the next questions.
    pub(crate) fn next(
        &self,
        seal: &Seal,
        able: &ClientCapabilities,
        answers: Option<&InputResponses>,
        state: Option<&str>,
    ) -> Result<Result<String, InputRequiredResult>, ErrorData> {
        let round = state.map_or(Ok(0), |state| seal.round(state))?;
        let wanted = self.questions(round, able);
        // In a sealed exchange, a call without a state is the first one, even if it contains answers.
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

/// Whether an answer is usable. The suite requires only that it is an object.
fn usable(answer: &Value) -> bool {
    answer.is_object()
}

fn can(able: &ClientCapabilities, question: &InputRequest) -> bool {
    match question {
        InputRequest::CreateMessage(_) => able.sampling.is_some(),
        InputRequest::Elicitation(_) => able.elicitation.is_some(),
        InputRequest::ListRoots(_) => able.roots.is_some(),
        // Future versions of rmcp may have further kinds of questions; the table has none.
        _ => false,
    }
}
