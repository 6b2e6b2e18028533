//! Synonyms for search: the words newcomers use beside those that tools are named by.
//!
//! Verbs above all, and the nouns of files, repositories, chats and notes. A word may be in several
//! groups. Not a thesaurus: a group earns its place by a query that fails without it.

/// Words that mean much the same when someone looks for a tool.
pub(super) const SYNONYMS: &[&[&str]] = &[
    &["delete", "remove", "erase", "destroy", "drop", "trash", "discard"],
    &["create", "make", "add", "new", "insert", "start", "open"],
    &["list", "show", "display", "enumerate", "browse"],
    &[
        "get", "read", "view", "fetch", "retrieve", "see", "look", "show", "open", "load",
        "contents",
    ],
    &["search", "find", "locate", "query", "look", "lookup", "grep"],
    &["update", "edit", "change", "modify", "alter", "replace", "set"],
    &["write", "save", "store", "put"],
    &["send", "post", "publish", "submit"],
    &["move", "rename"],
    &["copy", "duplicate"],
    &["run", "execute", "launch"],
    &["stop", "cancel", "kill", "terminate", "close"],
    &["undo", "revert", "reset", "rollback", "unstage"],
    &["diff", "difference", "compare", "changes"],
    &["history", "log", "commits"],
    &["folder", "directory", "dir"],
    &["repository", "repo", "project"],
    &["bug", "issue", "ticket", "problem"],
    &["pr", "pull", "merge"],
    &["comment", "reply", "respond", "answer"],
    &["remember", "memory", "memorize", "knowledge", "observations", "fact", "note"],
    &["relation", "link", "connect", "relationship"],
    &["entity", "entities", "person", "people"],
    &["user", "account", "people", "person"],
    &["time", "clock", "hour", "timezone"],
    &["convert", "translate", "transform"],
    &["website", "web", "url", "page", "site", "internet", "link"],
    &["image", "picture", "photo", "screenshot", "media"],
    &["message", "msg", "mail", "email", "chat"],
    &["database", "db", "sql", "table"],
    &["info", "information", "details", "metadata", "size", "big", "large"],
    &["text", "txt"],
];
