//! What a change of the config file comes to: a proxy that runs is told of it, and says what it made of
//! that.

use std::path::Path;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::backend::target;
use super::http_client::HttpClient;
use super::json_pointer::{list, text};
use super::running_proxy;
use super::terminal_safe::line;
use crate::config::file::Loaded;

/// What became of a changed file.
#[derive(Clone, Debug)]
pub(super) enum ReloadTold {
    /// No proxy runs: the next one reads it.
    NobodyRuns,
    /// It is in force; what is named of it counts from the next start on.
    InForce(Vec<String>),
    /// The proxy that runs reads its config at its start alone.
    NeedsRestart,
    /// The proxy that runs goes on with the old one, and says why.
    Refused(String),
    /// Whether it is in force is not known.
    NotAsked(String),
}

impl ReloadTold {
    /// For people: a sentence.
    pub(super) fn told(&self) -> String {
        match self {
            Self::NobodyRuns => "No mcpproxy runs: `mcpproxy serve` starts one.".to_owned(),
            Self::InForce(later) if later.is_empty() => {
                "The mcpproxy that runs has taken it up.".to_owned()
            }
            Self::InForce(later) => format!(
                "The mcpproxy that runs has taken it up, but for {}: that counts once it is started again.",
                line(&later.join(", "))
            ),
            Self::NeedsRestart => {
                "The mcpproxy that runs reads its config at its start: start it again.".to_owned()
            }
            Self::Refused(why) => {
                format!("The mcpproxy that runs goes on with the config it had: {}", line(why))
            }
            Self::NotAsked(why) => {
                format!("Whether a running mcpproxy has taken it up is not known: {}", line(why))
            }
        }
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let (state, why) = match self {
            Self::NobodyRuns => ("not_running", ""),
            Self::InForce(_) => ("in_force", ""),
            Self::NeedsRestart => ("needs_restart", ""),
            Self::Refused(why) => ("refused", why.as_str()),
            Self::NotAsked(why) => ("unknown", why.as_str()),
        };
        json!({"state": state, "reason": why})
    }
}

/// Tells the proxy that runs with this config, if one does, that the file is another; and that proxy.
///
/// What it answers is not believed alone: it may read another file, or have gone back since.
pub(super) async fn tell(loaded: &Loaded) -> (ReloadTold, Option<HttpClient>) {
    let Some(client) = running_proxy::find(&loaded.config).await else {
        return (ReloadTold::NobodyRuns, None);
    };
    let reloaded = match ask(&client, Method::POST, &["config", "reload"]).await {
        Ok(_) => match ask(&client, Method::GET, &["config"]).await {
            Ok(standing) => stands(&standing, &loaded.path),
            Err(told) => told,
        },
        Err(told) => told,
    };
    (reloaded, Some(client))
}

/// The `data` of an answer, or what another answer means.
async fn ask(client: &HttpClient, method: Method, path: &[&str]) -> Result<Value, ReloadTold> {
    let answer = client.request(method, &target(path, &[]), Bytes::new()).await;
    let answer = answer.map_err(|error| ReloadTold::NotAsked(error.to_string()))?;
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let error = body.get("error").and_then(Value::as_str).map(str::to_owned);
    match (answer.status, error) {
        (StatusCode::OK, _) => Ok(body.get("data").cloned().unwrap_or_default()),
        (StatusCode::NOT_FOUND, _) => Err(ReloadTold::NeedsRestart),
        (StatusCode::UNPROCESSABLE_ENTITY, Some(error)) => Err(ReloadTold::Refused(error)),
        (_, Some(error)) => Err(ReloadTold::NotAsked(error)),
        (status, None) => Err(ReloadTold::NotAsked(format!("it answers {status}"))),
    }
}

/// What the state of the config in force says of the file at `path`.
fn stands(standing: &Value, path: &Path) -> ReloadTold {
    let read = text(standing, "/path");
    let same = |read: &Path| {
        read == path
            || matches!((read.canonicalize(), path.canonicalize()), (Ok(a), Ok(b)) if a == b)
    };
    if !read.is_empty() && !same(Path::new(&*read)) {
        return ReloadTold::NotAsked(format!("it reads another file, {read}"));
    }
    if let Some(rejected) = standing.get("rejected").filter(|rejected| !rejected.is_null()) {
        let first = list(rejected, "/problems").first();
        let why = first.map(|it| format!("{}: {}", text(it, "/key"), text(it, "/problem")));
        return ReloadTold::Refused(why.unwrap_or_default());
    }
    let later = list(standing, "/needs_restart").iter().filter_map(Value::as_str);
    ReloadTold::InForce(later.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_force_is_told_to_be() {
        let standing = |path: &str, rejected: Value, later: &[&str]| {
            stands(
                &json!({"path": path, "rejected": rejected, "needs_restart": later}),
                Path::new("/a/config.json"),
            )
        };
        let told = standing("/a/config.json", Value::Null, &[]);
        assert!(matches!(&told, ReloadTold::InForce(later) if later.is_empty()), "{told:?}");
        let told = standing("/a/config.json", Value::Null, &["listen"]);
        assert!(told.told().contains("but for listen"), "{told:?}");
        let rejected =
            json!({"since": "", "problems": [{"key": "listen", "problem": "no address"}]});
        let told = standing("/a/config.json", rejected, &[]);
        assert!(
            matches!(&told, ReloadTold::Refused(why) if why == "listen: no address"),
            "{told:?}"
        );
        assert_eq!(told.json()["state"], "refused");
        let told = standing("/b/config.json", Value::Null, &[]);
        assert!(
            matches!(&told, ReloadTold::NotAsked(why) if why.contains("/b/config.json")),
            "{told:?}"
        );
    }
}
