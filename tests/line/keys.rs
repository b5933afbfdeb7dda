//! Limits that answer one key and ask for different things.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment,
};
use nucleo_runtime::testing;
use nucleo_runtime::{ErrorKind, JobError};

use super::cases::gate;
use super::line::{Line, both, of};

/// Open or not; of any amount.
struct Door<A> {
    key: AccountKey,
    open: AtomicBool,
    amount: PhantomData<fn(A)>,
}

fn door<A>(key: &AccountKey) -> Arc<Door<A>> {
    Arc::new(Door {
        key: key.clone(),
        open: AtomicBool::new(false),
        amount: PhantomData,
    })
}

impl<A> RateLimiter for Door<A>
where
    A: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static,
{
    type Amount = A;

    fn account_for(&self, _: &A) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        AccountStatus::new(AccountCategory::Semaphore, 1, 0)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, _: &[A], _: &[A], _: Instant) -> Result<bool, JobError> {
        Ok(self.open.load(Ordering::SeqCst))
    }

    fn try_take(&self, mine: &[A], ahead: &[A], now: Instant) -> Result<bool, JobError> {
        self.fits(mine, ahead, now)
    }

    fn give(&self, _: &[A], _: Instant) {}

    fn earliest_fit(&self, _: &[A], _: &[A], _: Instant) -> Option<Instant> {
        None
    }
}

fn assert_refused(error: &JobError) {
    assert!(matches!(error.kind(), ErrorKind::System { .. }), "{error}");
    assert!(error.to_string().contains("'shared'"), "{error}");
}

#[test]
fn a_demand_that_asks_one_account_for_two_things_is_refused_alone() {
    let line = Line::new();
    let key = AccountKey::new("shared");
    let (plain, sized) = (door::<()>(&key), door::<u8>(&key));
    let slots = gate("slots", 1);
    let holder = line.admit(of(&slots, ())).unwrap();
    let waiting = line.ask(of(&slots, ()));
    assert_refused(&line.admit(both((&plain, ()), (&sized, 1))).unwrap_err());
    holder.release();
    drop(waiting.granted());
    // It brought the account, and left it to whoever asks next.
    sized.open.store(true, Ordering::SeqCst);
    drop(line.admit(of(&sized, 1)).unwrap());
}

#[test]
fn an_account_is_asked_for_what_it_was_first_asked_for() {
    let line = Line::new();
    let key = AccountKey::new("shared");
    let (plain, sized) = (door::<()>(&key), door::<u8>(&key));
    let head = line.ask(of(&plain, ()));
    // It would not see what the head has set aside.
    sized.open.store(true, Ordering::SeqCst);
    assert_refused(&line.admit(of(&sized, 1)).unwrap_err());
    let behind = line.ask(of(&plain, ()));
    assert_eq!(line.parked(), 2);
    testing::cancel(&behind.context, "not needed");
    assert!(behind.answer().unwrap_err().is_cancelled());
    plain.open.store(true, Ordering::SeqCst);
    key.capacity_grew();
    drop(head.granted());
}
