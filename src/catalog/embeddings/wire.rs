//! Messages of an OpenAI-compatible `/embeddings` endpoint. Pure.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::search::UnitVector;

/// Maximum number of texts per request. It is small so that a query does not wait long behind the request.
pub const MAX_TEXTS: usize = 16;

/// Maximum size of a response, in bytes; larger than any request needs.
pub const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// Reason why a response is rejected. The content is never quoted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadAnswer {
    /// Empty or too long.
    #[error("its answer is empty or longer than {MAX_ANSWER_BYTES} bytes")]
    Length,
    #[error("its answer is not a list of embeddings")]
    Form,
    /// Missing, extra or duplicate vectors.
    #[error("its answer has {found} embeddings, not {asked} in their order")]
    Count {
        /// Vectors in the answer.
        found: usize,
        /// Texts in the request.
        asked: usize,
    },
    /// A malformed vector.
    #[error("an embedding is zero, too long, or has a member that is not a number")]
    Vector,
    /// Vectors of different dimensions.
    #[error("an embedding has {found} dimensions, not {expected}")]
    Dimensions { found: usize, expected: usize },
}

/// Request body for the vectors of `texts`.
pub fn request(model: &str, texts: &[impl AsRef<str>]) -> Bytes {
    #[derive(Serialize)]
    struct Request<'a> {
        model: &'a str,
        input: Vec<&'a str>,
    }
    let input = texts.iter().map(AsRef::as_ref).collect();
    // Strings always serialize.
    serde_json::to_vec(&Request { model, input }).unwrap_or_default().into()
}

/// Parses the response to `asked` texts, in order. All vectors must have `dimensions`, or a common dimension if that is
/// unknown.
pub fn vectors(
    body: &[u8],
    asked: usize,
    dimensions: Option<usize>,
) -> Result<Vec<UnitVector>, BadAnswer> {
    #[derive(Deserialize)]
    struct Answer {
        data: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        #[serde(default)]
        index: Option<usize>,
        embedding: Vec<f32>,
    }
    if body.is_empty() {
        return Err(BadAnswer::Length);
    }
    let Answer { data } = serde_json::from_slice(body).map_err(|_| BadAnswer::Form)?;
    let count = BadAnswer::Count { found: data.len(), asked };
    if data.len() != asked {
        return Err(count);
    }
    let mut in_order: Vec<Option<UnitVector>> = vec![None; asked];
    let mut expected = dimensions;
    for (place, Item { index, embedding }) in data.into_iter().enumerate() {
        let found = embedding.len();
        let vector = UnitVector::of(embedding).ok_or(BadAnswer::Vector)?;
        let expected = *expected.get_or_insert(found);
        if found != expected {
            return Err(BadAnswer::Dimensions { found, expected });
        }
        match in_order.get_mut(index.unwrap_or(place)) {
            Some(free @ None) => *free = Some(vector),
            Some(Some(_)) | None => return Err(count),
        }
    }
    in_order.into_iter().collect::<Option<_>>().ok_or(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_names_the_model_and_the_texts() {
        let body = request("m\"", &["a\n", "é"]);
        assert_eq!(body, r#"{"model":"m\"","input":["a\n","é"]}"#);
    }

    #[test]
    fn vectors_follow_the_order_of_texts() {
        let body = br#"{"object":"list","usage":{"x":[1]},"data":[
            {"object":"embedding","index":1,"embedding":[0,2]},{"index":0,"embedding":[3.0e0,4]}]}"#;
        let read = vectors(body, 2, None).unwrap();
        assert_eq!(read[0].numbers(), [0.6, 0.8]);
        assert_eq!(read[1].numbers(), [0.0, 1.0]);
        let unnumbered = br#"{"data":[{"embedding":[1,0]},{"embedding":[0,1]}]}"#;
        assert_eq!(vectors(unnumbered, 2, Some(2)).unwrap()[1].numbers(), [0.0, 1.0]);
    }

    #[test]
    fn malformed_response_is_rejected_without_quoting_it() {
        use BadAnswer as E;
        let deep = format!(r#"{{"x":{}"#, "[".repeat(100_000));
        for (body, asked, dimensions, expected) in [
            ("", 1, None, E::Length),
            ("<html>", 1, None, E::Form),
            (&deep, 1, None, E::Form),
            (r#"{"data":[{"embedding":[NaN]}]}"#, 1, None, E::Form),
            (r#"{"data":[{"embedding":"AAAA"}]}"#, 1, None, E::Form),
            (r#"{"data":[{"embedding":[1e999]}]}"#, 1, None, E::Form),
            (r#"{"data":[{"embedding":[1,null]}]}"#, 1, None, E::Form),
            (r#"{"error":"no such model"}"#, 1, None, E::Form),
            (r#"{"data":[]}"#, 1, None, E::Count { found: 0, asked: 1 }),
            (
                r#"{"data":[{"embedding":[1]},{"embedding":[1]}]}"#,
                1,
                None,
                E::Count { found: 2, asked: 1 },
            ),
            (
                r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#,
                2,
                None,
                E::Count { found: 2, asked: 2 },
            ),
            (r#"{"data":[{"index":7,"embedding":[1]}]}"#, 1, None, E::Count { found: 1, asked: 1 }),
            (r#"{"data":[{"embedding":[]}]}"#, 1, None, E::Vector),
            (r#"{"data":[{"embedding":[0,0]}]}"#, 1, None, E::Vector),
            (r#"{"data":[{"embedding":[1e39,1]}]}"#, 1, None, E::Form),
            (
                r#"{"data":[{"embedding":[1,2]}]}"#,
                1,
                Some(3),
                E::Dimensions { found: 2, expected: 3 },
            ),
            (
                r#"{"data":[{"embedding":[1]},{"embedding":[1,2]}]}"#,
                2,
                None,
                E::Dimensions { found: 2, expected: 1 },
            ),
        ] {
            let short = body.get(..body.len().min(80)).unwrap();
            assert_eq!(vectors(body.as_bytes(), asked, dimensions), Err(expected), "{short}");
        }
    }
}
