//! Tasks of the servers whose changes clients follow (MCP Tasks extension §Task Status Notifications).
//!
//! They belong to a server's name in the config, like the sealed ids of tasks: each connection of a server of that name
//! asks for their changes ([`crate::listen`]), also after its entry was replaced, or removed and added again. A follower
//! pins neither connection nor entry.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Maximum tasks of one server whose changes are followed.
const MAX_FOLLOWED_TASKS: usize = 1024;

/// Followed tasks of the servers of one name, by the server's id.
#[derive(Debug, Default)]
pub(super) struct FollowedTasks(watch::Sender<BTreeMap<Arc<str>, FollowedTask>>);

/// A task with its followers.
#[derive(Debug, Default)]
pub(super) struct FollowedTask {
    followers: usize,
    /// Number of changes so far.
    changes: watch::Sender<u64>,
}

impl FollowedTasks {
    /// Follows the changes of a task from now on. `None` if too many are followed.
    pub(super) fn follow(self: &Arc<Self>, task: Arc<str>) -> Option<TaskFollower> {
        let mut changes = None;
        self.0.send_if_modified(|tasks| {
            if !tasks.contains_key(&task) && tasks.len() >= MAX_FOLLOWED_TASKS {
                return false;
            }
            let followed = tasks.entry(Arc::clone(&task)).or_default();
            followed.followers += 1;
            let mut seen = followed.changes.subscribe();
            if followed.followers > 1 {
                // The task may have changed since its first follower was notified.
                seen.mark_changed();
            }
            changes = Some(seen);
            followed.followers == 1
        });
        Some(TaskFollower { tasks: Arc::clone(self), task, changes: changes? })
    }

    /// Removes a follower of a task.
    fn leave(&self, task: &str) {
        self.0.send_if_modified(|tasks| {
            let Some(followed) = tasks.get_mut(task) else { return false };
            followed.followers -= 1;
            let is_last = followed.followers == 0;
            if is_last {
                tasks.remove(task);
            }
            is_last
        });
    }

    /// Notifies the followers of a task that it has, or may have, changed.
    pub(super) fn changed(&self, task: &str) {
        if let Some(followed) = self.0.borrow().get(task) {
            followed.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Receiver of the set of followed tasks.
    pub(super) fn wanted(&self) -> watch::Receiver<BTreeMap<Arc<str>, FollowedTask>> {
        self.0.subscribe()
    }
}

/// A follower of one task; ends when dropped.
#[derive(Debug)]
pub struct TaskFollower {
    tasks: Arc<FollowedTasks>,
    task: Arc<str>,
    changes: watch::Receiver<u64>,
}

impl TaskFollower {
    /// Waits until the task has, or may have, changed since the last time; changes in between are one. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // The sender lives as long as its followers.
            pending::<()>().await;
        }
    }
}

impl Drop for TaskFollower {
    fn drop(&mut self) {
        self.tasks.leave(&self.task);
    }
}

/// Followed tasks by the names of their servers.
#[derive(Debug, Default)]
pub(super) struct FollowedTasksByName(Mutex<HashMap<Arc<str>, Weak<FollowedTasks>>>);

impl FollowedTasksByName {
    /// The followed tasks of all servers of that name, present and future. Kept as long as a server or a follower has them.
    pub(super) fn of(&self, name: &Arc<str>) -> Arc<FollowedTasks> {
        let mut all = self.0.lock();
        if let Some(known) = all.get(name).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, tasks| tasks.strong_count() > 0);
        let tasks = Arc::<FollowedTasks>::default();
        all.insert(Arc::clone(name), Arc::downgrade(&tasks));
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a change is waiting for the follower, which is then seen.
    fn has_change(follower: &mut TaskFollower) -> bool {
        let is_changed = follower.changes.has_changed().unwrap();
        follower.changes.borrow_and_update();
        is_changed
    }

    #[test]
    fn pro_43_task_is_followed_as_long_as_one_client_follows_it() {
        let followed = Arc::<FollowedTasks>::default();
        let mut changes = followed.wanted();
        let mut seen = || {
            let is_changed = changes.has_changed().unwrap();
            (is_changed, changes.borrow_and_update().len())
        };
        let first = followed.follow("t".into()).expect("there is room");
        assert_eq!(seen(), (true, 1));
        let second = followed.follow("t".into()).expect("there is room");
        drop(first);
        assert_eq!(seen(), (false, 1), "one is left");
        drop(second);
        assert_eq!(seen(), (true, 0));
        let all: Vec<_> =
            (0..=MAX_FOLLOWED_TASKS).map_while(|n| followed.follow(n.to_string().into())).collect();
        assert_eq!(all.len(), MAX_FOLLOWED_TASKS);
        assert!(followed.follow("0".into()).is_some(), "a known one takes no room");
    }

    #[test]
    fn pro_43_change_reaches_the_followers_of_its_task_once() {
        let followed = Arc::<FollowedTasks>::default();
        followed.changed("a");
        let [mut first, mut second] =
            [(); 2].map(|()| followed.follow("a".into()).expect("there is room"));
        let mut other = followed.follow("b".into()).expect("there is room");
        assert!(!has_change(&mut first), "it was before");
        assert!(has_change(&mut second), "it may have changed since the first one was notified");
        for _ in 0..1000 {
            followed.changed("a");
            followed.changed("unknown");
        }
        assert!(has_change(&mut first) && has_change(&mut second));
        assert!(!has_change(&mut first) && !has_change(&mut other));
    }

    #[test]
    fn pro_43_followers_stay_with_the_name_of_their_server() {
        let by_name = FollowedTasksByName::default();
        let (name, other) = ("s".into(), "t".into());
        let before = by_name.of(&name);
        let mut follower = before.follow("a".into()).expect("there is room");
        // The server is removed from the config and added again.
        drop(before);
        drop(by_name.of(&other));
        let after = by_name.of(&name);
        assert_eq!(after.wanted().borrow().keys().map(|it| &**it).collect::<Vec<_>>(), ["a"]);
        after.changed("a");
        assert!(has_change(&mut follower));
        drop((follower, after));
        assert!(by_name.of(&other).wanted().borrow().is_empty());
        assert_eq!(by_name.0.lock().len(), 1, "names without servers and followers are forgotten");
    }
}
