//! Databases: how a stack of any kind lends its connections to jobs (`DB`).
//!
//! A [`DbResourceProvider`] says how many jobs its database serves at once and makes a handle for
//! each of them; the pool behind it stays the application's. A job that declared a provider is
//! granted a permit of its [gate](DbResourceProvider::admission) together with everything else it
//! asked for, and only then is a connection taken.
//!
//! | provider | connections |
//! |---|---|
//! | [`CountingDbResourceProvider`] | your own stack's; it only counts |
//! | `sqlite::SqliteProvider` (feature `sqlite`) | a small pool over one file |
//!
//! # Invariants
//!
//! 1. A handle holds the session and the state of its transaction, never the permit.
//! 2. A permit returns when the connection behind it has left: given back, closed, or, after an
//!    abort that a stuck call outlasted, dropped by that call when it leaves at last.
//! 3. A provider is told apart by its address, never by its name.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::admission::DatabaseGate;
use crate::error::JobError;

mod counting;
mod registry;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use counting::{CountingDbResourceProvider, CountingHandle};
pub use registry::DbResourceProviders;

/// What one job holds of a database: a cheap clone that all its users share.
///
/// A handle lends its connection for one call at a time and never hands it out, so that it can be
/// closed and aborted from another thread.
pub trait DbManagedResource: Clone + Send + Sync + 'static {
    /// The name of the provider that made it.
    fn provider(&self) -> &str;
}

/// A database as the runtime sees it: how many jobs it serves, and how a job's session begins and
/// ends.
///
/// # Contract
///
/// [`close`](Self::close), [`rollback`](Self::rollback) and [`abort`](Self::abort) may be called
/// any number of times, in any order, and from other threads than the job's. Every method refuses
/// a handle that another provider made. [`testing::db_provider_contract`](crate::testing) runs
/// these rules against a provider and a real database.
pub trait DbResourceProvider: Send + Sync + 'static {
    /// What a job works with.
    type Handle: DbManagedResource;

    /// The provider's name, which no other of the dispatcher may have.
    fn name(&self) -> &str;

    /// The gate `db:<name>`: one permit for each job that holds a handle.
    fn admission(&self) -> Arc<DatabaseGate>;

    /// A second gate, of which a job that is not read-only takes one permit too. `None` unless the
    /// provider says otherwise.
    fn write_admission(&self) -> Option<Arc<DatabaseGate>> {
        None
    }

    /// Makes the handle of a job that has its permits. Never waits for a permit or for a free
    /// connection: there is one for each permit.
    ///
    /// `read_only` is what the job declared. At `deadline`, where there is one, waits that the
    /// handle makes inside the database give up.
    ///
    /// # Errors
    /// `ExternalService` when the database cannot be reached.
    fn acquire(&self, read_only: bool, deadline: Option<Instant>)
    -> Result<Self::Handle, JobError>;

    /// Begins the job's transaction.
    ///
    /// # Errors
    /// The database's refusal; a transaction that is begun already; a handle that is closed.
    fn begin(&self, handle: &Self::Handle) -> Result<(), JobError>;

    /// Commits the transaction. Nothing to do when none was begun.
    ///
    /// # Errors
    /// The database's refusal, after which nothing is committed; a handle that is closed.
    fn commit(&self, handle: &Self::Handle) -> Result<(), JobError>;

    /// Returns when another connection would see what was committed. A provider documents why that
    /// holds for it.
    ///
    /// # Errors
    /// When that cannot be told.
    fn await_visible(&self, handle: &Self::Handle) -> Result<(), JobError>;

    /// Rolls the transaction back. Nothing to do when none is open. Waits for a call that another
    /// thread runs on the handle, which [`close`](Self::close) and [`abort`](Self::abort) stop.
    ///
    /// # Errors
    /// The database's refusal; the connection is discarded at the close then.
    fn rollback(&self, handle: &Self::Handle) -> Result<(), JobError>;

    /// Rolls back what is open, puts the session's settings back and gives the connection back.
    ///
    /// Tells a call that runs on another thread to stop and does not wait for it: the connection
    /// follows when that call leaves, and [`keep_until_gone`](Self::keep_until_gone) tells when.
    ///
    /// # Errors
    /// What failed while the session was put back. The connection has left all the same.
    fn close(&self, handle: &Self::Handle) -> Result<(), JobError>;

    /// Severs the connection: stops what runs on it, rolls back and discards it. Waits for a
    /// running call to leave, at most until `deadline`.
    ///
    /// # Errors
    /// When the provider could not even try. The connection counts as orphaned then.
    fn abort(&self, handle: &Self::Handle, deadline: Instant) -> Result<Abort, JobError>;

    /// Takes the permit of a handle whose job is over, and drops it once the connection is really
    /// gone: at once when it is.
    fn keep_until_gone(&self, handle: &Self::Handle, permit: HeldPermit) {
        let _ = handle;
        drop(permit);
    }
}

/// How an abort ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the permit of an orphaned connection is handed to `keep_until_gone`"]
pub enum Abort {
    /// The connection is gone.
    Severed,
    /// A call of the job still has the connection. It can do no more with it, and drops it when it
    /// leaves.
    Orphaned,
}

/// Permits on their way back to their gates: dropping it returns them. The runtime makes it.
#[must_use = "dropping it gives the permits back"]
pub struct HeldPermit {
    _permit: Box<dyn Any + Send + Sync>,
}

impl HeldPermit {
    /// Wraps whatever gives the permits back when it is dropped.
    pub fn new(permit: impl Send + Sync + 'static) -> Self {
        Self {
            _permit: Box::new(permit),
        }
    }
}

impl fmt::Debug for HeldPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldPermit")
    }
}

/// The refusal of a handle that another provider made.
pub(crate) fn foreign_handle(provider: &str, handle: &impl DbManagedResource) -> JobError {
    JobError::illegal_state(format!(
        "the database provider '{provider}' was handed a handle of another provider, '{}': use the \
         provider that made it",
        handle.provider()
    ))
}

/// What tells two providers apart.
pub(crate) fn identity<P>(provider: &Arc<P>) -> *const () {
    Arc::as_ptr(provider).cast()
}

/// A provider without its type, as the runtime keeps it.
pub(crate) trait ErasedProvider: Send + Sync {
    fn name(&self) -> &str;

    /// The gates of which a job takes one permit each, in the order in which it demands them.
    fn gates(&self, read_only: bool) -> Vec<Arc<DatabaseGate>>;

    fn acquire(
        &self,
        read_only: bool,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn ErasedHandle>, JobError>;

    /// Whether this is the provider at that address; see [`identity`].
    fn same_as(&self, provider: *const ()) -> bool;
}

/// A handle together with its provider, without their types.
pub(crate) trait ErasedHandle: Send + Sync {
    fn begin(&self) -> Result<(), JobError>;
    fn commit(&self) -> Result<(), JobError>;
    fn await_visible(&self) -> Result<(), JobError>;
    fn rollback(&self) -> Result<(), JobError>;
    fn close(&self) -> Result<(), JobError>;
    fn abort(&self, deadline: Instant) -> Result<Abort, JobError>;
    fn keep_until_gone(&self, permit: HeldPermit);

    /// The provider's own handle, to be downcast.
    fn handle_any(&self) -> &dyn Any;
}

struct Erased<P>(Arc<P>);

struct Bound<P: DbResourceProvider> {
    provider: Arc<P>,
    handle: P::Handle,
}

/// `provider` without its type.
pub(crate) fn erase<P: DbResourceProvider>(provider: &Arc<P>) -> Arc<dyn ErasedProvider> {
    Arc::new(Erased(Arc::clone(provider)))
}

impl<P: DbResourceProvider> ErasedProvider for Erased<P> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn gates(&self, read_only: bool) -> Vec<Arc<DatabaseGate>> {
        let mut gates = vec![self.0.admission()];
        if !read_only {
            gates.extend(self.0.write_admission());
        }
        gates
    }

    fn acquire(
        &self,
        read_only: bool,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn ErasedHandle>, JobError> {
        Ok(Box::new(Bound {
            handle: self.0.acquire(read_only, deadline)?,
            provider: Arc::clone(&self.0),
        }))
    }

    fn same_as(&self, provider: *const ()) -> bool {
        identity(&self.0) == provider
    }
}

impl<P: DbResourceProvider> ErasedHandle for Bound<P> {
    fn begin(&self) -> Result<(), JobError> {
        self.provider.begin(&self.handle)
    }

    fn commit(&self) -> Result<(), JobError> {
        self.provider.commit(&self.handle)
    }

    fn await_visible(&self) -> Result<(), JobError> {
        self.provider.await_visible(&self.handle)
    }

    fn rollback(&self) -> Result<(), JobError> {
        self.provider.rollback(&self.handle)
    }

    fn close(&self) -> Result<(), JobError> {
        self.provider.close(&self.handle)
    }

    fn abort(&self, deadline: Instant) -> Result<Abort, JobError> {
        self.provider.abort(&self.handle, deadline)
    }

    fn keep_until_gone(&self, permit: HeldPermit) {
        self.provider.keep_until_gone(&self.handle, permit);
    }

    fn handle_any(&self) -> &dyn Any {
        &self.handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_erased_provider_is_the_one_it_was_made_of() {
        let one = Arc::new(CountingDbResourceProvider::new("orders", 2).unwrap());
        let other = Arc::new(CountingDbResourceProvider::new("orders", 2).unwrap());
        let erased = erase(&one);
        assert_eq!(erased.name(), "orders");
        assert!(erased.same_as(identity(&one)));
        assert!(!erased.same_as(identity(&other)));
        for read_only in [true, false] {
            let gates = erased.gates(read_only);
            assert_eq!(gates.len(), 1);
            assert_eq!(gates[0].key(), one.admission().key());
        }
        let handle = erased.acquire(false, None).unwrap();
        handle.begin().unwrap();
        handle.commit().unwrap();
        handle.await_visible().unwrap();
        handle.rollback().unwrap();
        let own = handle.handle_any().downcast_ref::<CountingHandle>();
        assert!(one.begin(own.unwrap()).is_ok());
        assert!(other.begin(own.unwrap()).is_err());
        assert_eq!(handle.abort(Instant::now()).unwrap(), Abort::Severed);
        handle.close().unwrap();
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn only_a_job_that_writes_takes_the_permit_of_the_one_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders.db");
        let orders = Arc::new(sqlite::SqliteProvider::open(path).unwrap());
        let names = |read_only| -> Vec<String> {
            let gates = erase(&orders).gates(read_only);
            gates.iter().map(|gate| gate.name().to_owned()).collect()
        };
        assert_eq!(names(true), ["db:orders"]);
        assert_eq!(names(false), ["db:orders", "db:orders:write"]);
    }
}
