//! Passwords in the keyring of whoever is logged in to this machine: GNOME's, KDE's or another that has the Secret Service
//! interface on the session's D-Bus.
//!
//! It may ask its user to unlock it, and then does not answer for long: it is asked on a thread of its own, and waited for
//! as long as somebody would type.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thiserror::Error;

/// How long an answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// For how long it is not asked again after it has not answered: of several servers each would wait.
const SILENCE: Duration = Duration::from_secs(30);
/// Most questions that are under way; one that nobody waits for any more is among them until the keyring answers.
const MAX_ASKING: usize = 16;

static ASKING: AtomicUsize = AtomicUsize::new(0);
/// When it last did not answer, or was not unlocked.
static SILENT_SINCE: Mutex<Option<Instant>> = Mutex::new(None);

/// The password of `user` for `service`, as `secret-tool lookup service S username U` gives it. Blocks, for
/// [`PATIENCE`] at most.
///
/// # Errors
/// Why there is none, in one line that quotes no password.
pub fn password(service: &str, user: &str) -> Result<String, String> {
    let silent_since = *SILENT_SINCE.lock();
    if silent_since.is_some_and(|since| since.elapsed() < SILENCE) {
        return Err("the keyring has just not answered, or is locked: unlock it".to_owned());
    }
    if ASKING.fetch_add(1, Ordering::Relaxed) >= MAX_ASKING {
        ASKING.fetch_sub(1, Ordering::Relaxed);
        return Err("the keyring does not answer".to_owned());
    }
    let (tell, told) = mpsc::sync_channel(1);
    let (service, user) = (service.to_owned(), user.to_owned());
    let asking = thread::Builder::new().name("keyring".to_owned()).spawn(move || {
        let password = ask(&service, &user);
        // Whoever has sent its question away is not asked the same for the next server.
        if matches!(password, Err(NotTold::Locked)) {
            *SILENT_SINCE.lock() = Some(Instant::now());
        }
        let password = password.map_err(|why| why.to_string());
        ASKING.fetch_sub(1, Ordering::Relaxed);
        // Whoever asked may have given up.
        let _ = tell.send(password);
    });
    if let Err(error) = asking {
        ASKING.fetch_sub(1, Ordering::Relaxed);
        return Err(format!("no thread can be started to ask the keyring: {error}"));
    }
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        *SILENT_SINCE.lock() = Some(Instant::now());
        Err(format!("the keyring did not answer within {} s: unlock it", PATIENCE.as_secs()))
    })
}

/// Why it gives no password.
#[derive(Debug, Error)]
enum NotTold {
    #[error("it is locked, or there is none: unlock it, or log in to a desktop")]
    Locked,
    #[error("{0}")]
    Other(String),
}

#[cfg(target_os = "linux")]
fn ask(service: &str, user: &str) -> Result<String, NotTold> {
    use keyring_core::Error;
    use keyring_core::api::CredentialStoreApi as _;
    use zbus_secret_service_keyring_store::Store;

    let words = |error: Error| match error {
        Error::NoEntry => "it has none of that service and user name".to_owned(),
        Error::Ambiguous(_) => "it has several of that service and user name".to_owned(),
        Error::PlatformFailure(why) => {
            let why = why.to_string();
            format!("no keyring can be asked: {}", why.lines().next().unwrap_or_default())
        }
        // What was read may stand in them.
        Error::BadEncoding(_) | Error::BadDataFormat(..) => "it is no text".to_owned(),
        other => other.to_string(),
    };
    let told = |error: Error| match error {
        Error::NoStorageAccess(_) => NotTold::Locked,
        other => NotTold::Other(words(other)),
    };
    let entry = Store::new().and_then(|store| store.build(service, user, None)).map_err(told)?;
    entry.get_password().map_err(told)
}

#[cfg(not(target_os = "linux"))]
fn ask(_service: &str, _user: &str) -> Result<String, NotTold> {
    Err(NotTold::Other("keyrings are read on Linux alone".to_owned()))
}
