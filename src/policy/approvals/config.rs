//! Config section `approval`.

use std::fmt;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::Principal;

/// Default of `approval.timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Maximum wait that can be configured.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Maximum lifetime of a standing approval.
pub const MAX_STANDING: Duration = Duration::from_secs(24 * 3600);
/// Minimum length of a webhook's secret, in characters.
const MIN_SECRET_CHARS: usize = 16;

/// The section `approval`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Time that a call waits for an answer: more than zero, at most 24 hours.
    #[serde(deserialize_with = "timeout")]
    pub timeout: Duration,
    /// Whether the calling client is asked as well, if it declares elicitation. Default: yes, unless it calls
    /// anonymously or with an agent token.
    pub elicitation: Option<bool>,
    /// Webhook that receives approval events.
    pub webhook: Option<Webhook>,
}

impl Default for Config {
    fn default() -> Self {
        Self { timeout: DEFAULT_TIMEOUT, elicitation: None, webhook: None }
    }
}

impl Config {
    /// Whether a client that calls as `principal` may be asked for its own approval.
    ///
    /// By default, an anonymous client or one with an agent token may not: nothing proves that a person is behind it,
    /// and an agent could approve its own calls.
    pub fn may_elicit(&self, principal: &Principal) -> bool {
        self.elicitation.unwrap_or(match principal {
            Principal::Anonymous | Principal::Token(_) => false,
            Principal::Admin | Principal::Subject(_) | Principal::Certificate(_) => true,
        })
    }
}

/// `approval.webhook`. `Debug` shows neither the secret nor the URL, whose path may be a secret.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Webhook {
    /// Target: https, or http to a loopback address.
    #[serde(deserialize_with = "url")]
    pub url: String,
    /// Key that signs messages, at least 16 characters.
    #[serde(deserialize_with = "secret")]
    pub secret: String,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Webhook(…)")
    }
}

/// Lifetime of an approval as the approver writes it: `1h`, `session`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForHowLong {
    Time(Duration),
    /// Until the session ends.
    Session,
}

impl ForHowLong {
    /// Reads `session`, or a duration above zero.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "session" => Some(Self::Session),
            _ => duration(text).map(Self::Time),
        }
    }
}

fn duration(text: &str) -> Option<Duration> {
    const DAY: u64 = 24 * 60 * 60;
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    let duration = match days {
        Some(days) => Duration::from_secs(days.checked_mul(DAY)?),
        None => text.parse::<jiff::SignedDuration>().ok()?.try_into().ok()?,
    };
    (!duration.is_zero()).then_some(duration)
}

fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let timeout = duration(&text).ok_or_else(|| {
        D::Error::custom(format_args!(
            "'{text}' is not a duration: write it like \"30s\" or \"5m\""
        ))
    })?;
    match timeout <= MAX_TIMEOUT {
        true => Ok(timeout),
        false => Err(D::Error::custom("must be 24h at most")),
    }
}

fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    // Errors never quote the URL, which may hold a secret.
    let url = url::Url::parse(&text)
        .map_err(|error| D::Error::custom(format_args!("cannot be read: {error}")))?;
    let loopback = match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => return Err(D::Error::custom("names no host")),
    };
    match url.scheme() {
        "https" => {}
        "http" if loopback => {}
        "http" => return Err(D::Error::custom("is plain http to another machine: use https")),
        _ => return Err(D::Error::custom("must be https, or http to a loopback address")),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(D::Error::custom("holds a user name or password: messages are signed instead"));
    }
    Ok(text)
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.chars().count() >= MIN_SECRET_CHARS {
        true => Ok(text),
        false => {
            Err(D::Error::custom(format_args!("must have at least {MIN_SECRET_CHARS} characters")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::{AgentToken, JwtSubject, Scope};

    #[test]
    fn section_is_parsed_within_its_bounds() {
        let read = |json: &str| serde_json::from_str::<Config>(json).map_err(|it| it.to_string());
        assert_eq!(read("{}"), Ok(Config::default()));
        let read_timeout = |text: &str| read(&format!(r#"{{"timeout":"{text}"}}"#));
        assert_eq!(read_timeout("90s").unwrap().timeout, Duration::from_secs(90));
        for bad in ["0s", "-5m", "25h", "soon", "5"] {
            assert!(read_timeout(bad).is_err(), "{bad}");
        }
        let hook = |url: &str, secret: &str| {
            read(&format!(r#"{{"webhook":{{"url":"{url}","secret":"{secret}"}}}}"#))
        };
        const SECRET: &str = "sixteen-characters";
        for good in ["https://hooks.example.com/x?y=1", "http://127.0.0.1:9/", "http://[::1]/"] {
            assert!(hook(good, SECRET).is_ok(), "{good}");
        }
        for bad in ["http://hooks.example.com/", "ftp://x/", "nowhere", "https://u:p@x.example/"] {
            assert!(hook(bad, SECRET).is_err(), "{bad}");
        }
        let error = hook("https://hooks.example.com/", "short-secret").unwrap_err();
        assert!(error.contains("at least 16") && !error.contains("short-secret"), "{error}");
        let shown = format!("{:?}", hook("https://hooks.example.com/path", SECRET).unwrap());
        assert!(!shown.contains(SECRET) && !shown.contains("path"), "{shown}");
    }

    #[test]
    fn elicitation_defaults_to_off_for_agent_tokens_and_anonymous() {
        let token = Principal::Token(Arc::new(AgentToken::new("ci", 1, Scope::default())));
        let subject = JwtSubject::new("ada", Vec::new(), SystemTime::UNIX_EPOCH);
        let [ada, cert] = [Principal::Subject(Arc::new(subject)), Principal::certificate("ada")];
        for (principal, by_default) in [
            (Principal::Anonymous, false),
            (token, false),
            (Principal::Admin, true),
            (ada, true),
            (cert, true),
        ] {
            for (text, expected) in [
                ("{}", by_default),
                (r#"{"elicitation":null}"#, by_default),
                (r#"{"elicitation":true}"#, true),
                (r#"{"elicitation":false}"#, false),
            ] {
                let config: Config = serde_json::from_str(text).unwrap();
                assert_eq!(config.may_elicit(&principal), expected, "{principal:?} {text}");
            }
        }
    }

    #[test]
    fn approval_lifetime_parses_duration_or_session() {
        assert_eq!(ForHowLong::parse("session"), Some(ForHowLong::Session));
        let hour = Duration::from_secs(3600);
        assert_eq!(ForHowLong::parse("1h"), Some(ForHowLong::Time(hour)));
        for bad in ["", "0h", "-1h", "ever", "1"] {
            assert_eq!(ForHowLong::parse(bad), None, "{bad}");
        }
    }
}
