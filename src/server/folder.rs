//! The data folder: made for its owner alone; what is ours in it is kept so.
//!
//! The folder itself may be the operator's, for other things too, so that its rights are told of
//! and not changed. Tokens that others could read are not made good again by taking that right
//! away: they stay as they are, and are not used.

use std::fs;
use std::io;
use std::path::Path;

use crate::os::private;

/// What begins the names of what we keep in it, all of it to be mended.
const KEPT: [&str; 6] = ["activity", "catalog", "address", "stderr", "results", "embeddings"];
/// What is mended itself, and not what is in it.
const LOGINS: &str = "oauth";

/// Makes the folder if it is not there, and closes what is ours in it to others.
///
/// # Errors
///
/// When it cannot be made or read.
pub(super) fn open(folder: &Path) -> io::Result<()> {
    private::folder(folder)?;
    if let Some(mode) = private::wider(folder) {
        let command = format!("chmod 700 {}", quoted(folder));
        tracing::warn!(
            "{}: others have rights on the data folder (mode {mode:03o}): {command}",
            folder.display()
        );
    }
    for entry in fs::read_dir(folder)?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let mended = if name == LOGINS {
            private::mend_alone(&path)
        } else if KEPT.iter().any(|kept| name.starts_with(kept)) {
            private::mend(&path)
        } else {
            continue;
        };
        if let Err(error) = mended {
            tracing::warn!("{}: others may have rights on it: {error}", path.display());
        }
    }
    Ok(())
}

/// A path as a shell takes it for one word.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn ours_is_mended_tokens_stay_refused_and_what_is_not_ours_stays() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        for (path, mode, after) in [
            ("activity/db/0.jnl", 0o644, 0o600),
            ("activity.damaged-1/db/0.jnl", 0o666, 0o600),
            ("catalog/s.json", 0o664, 0o600),
            ("address", 0o644, 0o600),
            ("oauth/s.json", 0o644, 0o644),
            ("notes.txt", 0o644, 0o644),
        ] {
            let path = data.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
            open(&data).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), after, "{}", path.display());
            let folder = path.parent().unwrap();
            assert_eq!(mode(folder), if folder == data { 0o755 } else { 0o700 });
        }
    }

    #[test]
    fn a_folder_is_made_for_its_owner_and_a_file_is_none() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("a/b");
        open(&data).unwrap();
        assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
        let file = data.join("file");
        fs::write(&file, "").unwrap();
        assert!(open(&file).is_err());
    }

    #[test]
    fn the_operators_own_folder_keeps_its_rights_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (data, theirs) = (home.path().join("data"), home.path().join("theirs"));
        for folder in [&data, &theirs] {
            fs::create_dir(folder).unwrap();
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink(&theirs, data.join("activity")).unwrap();
        open(&data).unwrap();
        for folder in [&data, &theirs] {
            let mode = fs::metadata(folder).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o755, "{}", folder.display());
        }
    }

    #[test]
    fn a_path_is_one_word_for_a_shell() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
