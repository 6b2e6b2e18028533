//! Server tasks whose changes clients follow (MCP Tasks extension §Task Status Notifications).
//!
//! Like sealed task ids, they belong to a server's name in the config: each connection of a server with this name
//! requests their changes ([`crate::listen`]), even after its entry was replaced, or removed and added again. A
//! follower pins neither a connection nor an entry.
//!
//! One principal may use all free slots. If the server has none left, a newcomer takes the slot of the oldest task of
//! the principal with the most tasks (max-min fairness).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mcpproxy_policy::{Principal, heaviest};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;

/// Maximum number of followed tasks of one server.
const MAX_FOLLOWED_TASKS: usize = 1024;

/// Followed tasks by the server's id.
pub(super) type FollowedById = BTreeMap<Arc<str>, FollowedTask>;

/// Followed tasks of all servers with one name.
#[derive(Debug, Default)]
pub(super) struct FollowedTasks {
    tasks: watch::Sender<FollowedById>,
    /// Number of the next task.
    next: AtomicU64,
}

#[derive(Debug)]
pub(super) struct FollowedTask {
    /// Position in the order of following; never reused.
    number: u64,
    /// Principal charged for the slot: the task's first follower.
    owner: Principal,
    followers: usize,
    /// Number of changes so far.
    changes: watch::Sender<u64>,
}

/// Error for a task that is not followed because all slots of its server are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{MAX_FOLLOWED_TASKS} tasks of the server are followed, which is the limit, and no other principal has more than its share: retry later"
)]
pub struct TooManyFollowed;

/// Error for a followed task that lost its slot to another principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp;

impl FollowedTasks {
    /// Starts to follow the changes of a task.
    pub(super) fn follow(
        self: &Arc<Self>,
        task: Arc<str>,
        principal: &Principal,
    ) -> Result<TaskFollower, TooManyFollowed> {
        let mut follower = None;
        self.tasks.send_if_modified(|tasks| {
            if let Some(followed) = tasks.get_mut(&task) {
                followed.followers += 1;
                let mut changes = followed.changes.subscribe();
                // The task may have changed since its first follower was notified.
                changes.mark_changed();
                follower = Some((followed.number, changes));
                return false;
            }
            if tasks.len() >= MAX_FOLLOWED_TASKS && !give_way(tasks, principal) {
                return false;
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let (changes, receiver) = watch::channel(0);
            follower = Some((number, receiver));
            let owner = principal.clone();
            let followed = FollowedTask { number, owner, followers: 1, changes };
            tasks.insert(Arc::clone(&task), followed);
            true
        });
        let (number, changes) = follower.ok_or(TooManyFollowed)?;
        Ok(TaskFollower { tasks: Arc::clone(self), task, number, changes })
    }

    /// Removes a follower of a task.
    fn leave(&self, task: &str, number: u64) {
        self.tasks.send_if_modified(|tasks| {
            // A task that lost its slot may be followed again.
            let followed = tasks.get_mut(task).filter(|followed| followed.number == number);
            let Some(followed) = followed else { return false };
            followed.followers -= 1;
            let is_last = followed.followers == 0;
            if is_last {
                tasks.remove(task);
            }
            is_last
        });
    }

    /// Notifies the followers of a task that it may have changed.
    pub(super) fn changed(&self, task: &str) {
        if let Some(followed) = self.tasks.borrow().get(task) {
            followed.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Receiver of the set of followed tasks.
    pub(super) fn wanted(&self) -> watch::Receiver<FollowedById> {
        self.tasks.subscribe()
    }
}

/// Evicts the oldest task of the principal with the most tasks, if that principal keeps at least as many as the
/// newcomer gets (max-min fairness). Two principals therefore never evict each other's tasks in turn.
fn give_way(tasks: &mut FollowedById, newcomer: &Principal) -> bool {
    let mut by_age: Vec<_> = tasks.values().map(|it| (it.number, &it.owner)).collect();
    by_age.sort_unstable_by_key(|(number, _)| *number);
    let of_newcomer = by_age.iter().filter(|(_, owner)| *owner == newcomer).count();
    let heaviest = heaviest(by_age.iter().map(|(_, owner)| *owner));
    let Some((heaviest, _)) = heaviest.filter(|(_, held)| *held > of_newcomer + 1) else {
        return false;
    };
    let oldest = by_age.iter().find(|(_, owner)| *owner == heaviest).map(|(number, _)| *number);
    tasks.retain(|_, it| Some(it.number) != oldest);
    true
}

/// Follower of one task; unfollows on drop.
#[derive(Debug)]
pub struct TaskFollower {
    tasks: Arc<FollowedTasks>,
    task: Arc<str>,
    number: u64,
    changes: watch::Receiver<u64>,
}

impl TaskFollower {
    /// Waits until the task may have changed since the last call; changes in between are merged. Cancel-safe.
    ///
    /// # Errors
    /// The task lost its slot and is no longer followed.
    pub async fn changed(&mut self) -> Result<(), GivenUp> {
        // The sender exists as long as its followers, unless the task is evicted.
        self.changes.changed().await.map_err(|_| GivenUp)
    }
}

impl Drop for TaskFollower {
    fn drop(&mut self) {
        self.tasks.leave(&self.task, self.number);
    }
}

/// Followed tasks by server name.
#[derive(Debug, Default)]
pub(super) struct FollowedTasksByName(Mutex<HashMap<Arc<str>, Weak<FollowedTasks>>>);

impl FollowedTasksByName {
    /// Followed tasks of all servers with this name, present and future. Retained as long as a server or a follower
    /// uses them.
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
    use futures_util::FutureExt;

    use super::*;

    fn follow(followed: &Arc<FollowedTasks>, task: &str) -> TaskFollower {
        followed.follow(task.into(), &Principal::Anonymous).expect("there is room")
    }

    /// Whether a change is pending for the follower; marks it as seen.
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
        let first = follow(&followed, "t");
        assert_eq!(seen(), (true, 1));
        let second = follow(&followed, "t");
        drop(first);
        assert_eq!(seen(), (false, 1), "one is left");
        drop(second);
        assert_eq!(seen(), (true, 0));
    }

    /// Principal that follows up to this many more tasks, as many as it can.
    fn following(
        followed: &Arc<FollowedTasks>,
        name: &str,
        count: usize,
    ) -> (Principal, Vec<TaskFollower>) {
        let principal = Principal::certificate(name);
        let ids = (0..count).map(|n| format!("{n} of {name}").into());
        let followers = ids.map_while(|id| followed.follow(id, &principal).ok()).collect();
        (principal, followers)
    }

    /// Removes the followers that lost their slots and returns their number.
    fn given_up(followers: &mut Vec<TaskFollower>) -> usize {
        let before = followers.len();
        followers.retain_mut(|it| it.changed().now_or_never() != Some(Err(GivenUp)));
        before - followers.len()
    }

    #[test]
    fn pro_43_one_principal_may_use_all_free_slots() {
        let followed = Arc::<FollowedTasks>::default();
        let (own, mut all) = following(&followed, "a", MAX_FOLLOWED_TASKS + 1);
        assert_eq!((all.len(), given_up(&mut all)), (MAX_FOLLOWED_TASKS, 0));
        assert!(followed.follow("0 of a".into(), &own).is_ok(), "a known task takes no slot");
        assert!(followed.follow("one more".into(), &own).is_err());
    }

    #[test]
    fn pro_43_heavy_principals_lose_their_oldest_tasks_to_a_newcomer() {
        let followed = Arc::<FollowedTasks>::default();
        let mut heavy =
            ["a", "b", "c", "d"].map(|name| following(&followed, name, MAX_FOLLOWED_TASKS / 4).1);
        let fair = MAX_FOLLOWED_TASKS / 5;
        let (newcomer, mut new) = following(&followed, "newcomer", MAX_FOLLOWED_TASKS);
        assert_eq!((new.len(), given_up(&mut new)), (fair, 0));
        let oldest: Vec<_> = (0..51).map(|n| format!("{n} of a")).collect();
        let gone = heavy[0].iter_mut().take(51).filter_map(|it| {
            let is_gone = it.changed().now_or_never() == Some(Err(GivenUp));
            is_gone.then(|| it.task.to_string())
        });
        assert_eq!(gone.collect::<Vec<_>>(), oldest);
        assert_eq!(heavy.each_mut().map(given_up), [51; 4]);
        // None of these principals can evict a task of another principal, because all of them have their share.
        assert_eq!(followed.tasks.borrow().len(), MAX_FOLLOWED_TASKS);
        for name in ["a", "b", "c", "d"] {
            let again =
                followed.follow(format!("again {name}").into(), &Principal::certificate(name));
            assert_eq!(again.map(|_| ()), Err(TooManyFollowed), "{name}");
        }
        assert!(followed.follow("one more".into(), &newcomer).is_err());
        // A principal with few tasks keeps them, regardless of the number of other principals.
        for n in 0..MAX_FOLLOWED_TASKS {
            new.extend(following(&followed, &format!("n{n}"), 1).1);
        }
        assert_eq!(followed.tasks.borrow().len(), MAX_FOLLOWED_TASKS);
        assert_eq!(given_up(&mut new), fair - 1);
        assert_eq!(heavy.each_mut().map(|it| it.len() - given_up(it)), [1; 4]);
    }

    #[test]
    fn pro_43_evicted_task_can_be_followed_again() {
        let followed = Arc::<FollowedTasks>::default();
        let (own, mut all) = following(&followed, "a", MAX_FOLLOWED_TASKS);
        let other = followed.follow("other".into(), &Principal::Anonymous).expect("a place");
        let first = all.remove(0);
        drop(other);
        let mut again = followed.follow(Arc::clone(&first.task), &own).expect("a place");
        drop(first);
        assert_eq!(given_up(&mut all), 0);
        followed.changed("0 of a");
        assert_eq!(again.changed().now_or_never(), Some(Ok(())), "it is still followed");
    }

    #[test]
    fn pro_43_change_reaches_the_followers_of_its_task_once() {
        let followed = Arc::<FollowedTasks>::default();
        followed.changed("a");
        let [mut first, mut second] = [(); 2].map(|()| follow(&followed, "a"));
        let mut other = follow(&followed, "b");
        assert!(!has_change(&mut first), "the change was before");
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
        let mut follower = follow(&before, "a");
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
