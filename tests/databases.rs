//! Databases, by the public surface: providers, handles and the registry on real files.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::RateLimiter;
use nucleo_runtime::db::sqlite::rusqlite::{self, Connection};
use nucleo_runtime::db::sqlite::{SqliteBuilder, SqliteHandle, SqliteProvider};
use nucleo_runtime::db::{
    Abort, CountingDbResourceProvider, DbManagedResource, DbResourceProvider, DbResourceProviders,
    HeldPermit,
};
use nucleo_runtime::testing::db_provider_contract::{Connections, DbFixture, check, unwind};
use nucleo_runtime::{Clock, ErrorKind, JobError, ManualClock};

/// A file that is deleted at the end, with an empty table `keys`.
struct Database {
    folder: tempfile::TempDir,
    provider: Arc<SqliteProvider>,
}

impl Database {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(settings: impl FnOnce(SqliteBuilder) -> SqliteBuilder) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let builder = SqliteProvider::builder(folder.path().join("orders.db"));
        let provider = Arc::new(settings(builder).open().unwrap());
        let database = Self { folder, provider };
        database
            .outside()
            .execute_batch("CREATE TABLE keys (key INTEGER)")
            .unwrap();
        database
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("orders.db")
    }

    /// A connection that the provider knows nothing of.
    fn outside(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    fn keys(&self) -> Vec<i64> {
        let outside = self.outside();
        let mut rows = outside
            .prepare("SELECT key FROM keys ORDER BY key")
            .unwrap();
        let keys = rows.query_map([], |row| row.get(0)).unwrap();
        keys.map(Result::unwrap).collect()
    }

    fn handle(&self) -> SqliteHandle {
        self.provider.acquire(false, None).unwrap()
    }

    fn out(&self) -> u32 {
        let stats = self.provider.stats();
        stats.open - stats.idle
    }
}

fn insert(handle: &SqliteHandle, key: i64) -> Result<usize, JobError> {
    handle.with(|conn| conn.execute("INSERT INTO keys VALUES (?1)", [key]))
}

fn count(handle: &SqliteHandle) -> Result<i64, JobError> {
    handle.with(|conn| conn.query_row("SELECT count(*) FROM keys", [], |row| row.get(0)))
}

/// A statement that would run for minutes.
fn endless(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000000000)
         SELECT count(*) FROM n",
        [],
        |row| row.get(0),
    )
}

fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn is_external(error: &JobError) -> bool {
    matches!(error.kind(), ErrorKind::ExternalService { .. })
}

fn is_illegal_state(error: &JobError) -> bool {
    matches!(error.kind(), ErrorKind::IllegalState { .. })
}

/// Says when it is dropped.
struct Signal(Sender<()>);

impl Drop for Signal {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

fn permit() -> (HeldPermit, Receiver<()>) {
    let (dropped, when_dropped) = mpsc::channel();
    (HeldPermit::new(Signal(dropped)), when_dropped)
}

// case DB-04
#[test]
fn the_counting_provider_only_counts() {
    let provider = CountingDbResourceProvider::new("orders", 3).unwrap();
    assert_eq!(provider.name(), "orders");
    assert_eq!(provider.admission().name(), "db:orders");
    assert_eq!(provider.admission().capacity(), 3);
    assert!(provider.write_admission().is_none());
    let handle = provider.acquire(false, None).unwrap();
    assert_eq!(handle.provider(), "orders");
    assert_eq!(provider.admission().in_use(), 0);
    for _ in 0..2 {
        provider.begin(&handle).unwrap();
        provider.commit(&handle).unwrap();
        provider.await_visible(&handle).unwrap();
        provider.rollback(&handle).unwrap();
        assert_eq!(
            provider.abort(&handle, Instant::now()).unwrap(),
            Abort::Severed
        );
        provider.close(&handle).unwrap();
    }
    let (held, dropped) = permit();
    provider.keep_until_gone(&handle, held);
    assert!(dropped.try_recv().is_ok());

    let other = CountingDbResourceProvider::new("orders", 3).unwrap();
    for refused in [
        other.begin(&handle),
        other.commit(&handle),
        other.await_visible(&handle),
        other.rollback(&handle),
        other.close(&handle),
        other.abort(&handle, Instant::now()).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(is_illegal_state(&error), "{error}");
        assert!(error.to_string().contains("another provider"), "{error}");
    }
    for (refused, field) in [
        (
            CountingDbResourceProvider::new("orders", 0),
            "max_concurrent",
        ),
        (CountingDbResourceProvider::new(" ", 1), "name"),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidInput { parameter, .. } if parameter == field)
        );
    }
}

// case DB-06
#[test]
fn a_session_holds_one_connection_from_the_acquisition_to_the_close() {
    let database = Database::new();
    let provider = &database.provider;
    assert_eq!(database.out(), 0);
    let handle = database.handle();
    assert_eq!(database.out(), 1);
    provider.begin(&handle).unwrap();
    insert(&handle, 1).unwrap();
    provider.commit(&handle).unwrap();
    assert_eq!(database.out(), 1);
    provider.close(&handle).unwrap();
    assert_eq!(database.out(), 0);
    assert_eq!(provider.stats().peak_open, 1);
}

// case DB-07
#[test]
fn a_row_is_visible_to_others_once_its_commit_was_awaited() {
    let database = Database::new();
    let provider = &database.provider;
    let (writer, reader) = (database.handle(), provider.acquire(true, None).unwrap());
    provider.begin(&writer).unwrap();
    insert(&writer, 1).unwrap();
    assert_eq!(count(&reader).unwrap(), 0);
    provider.commit(&writer).unwrap();
    provider.await_visible(&writer).unwrap();
    assert_eq!(count(&reader).unwrap(), 1);
}

// case DB-09
#[test]
fn an_end_without_a_commit_rolls_back_however_often_it_comes() {
    let database = Database::new();
    let provider = &database.provider;
    let handle = database.handle();
    provider.rollback(&handle).unwrap();
    provider.begin(&handle).unwrap();
    insert(&handle, 1).unwrap();
    provider.rollback(&handle).unwrap();
    provider.rollback(&handle).unwrap();
    provider.begin(&handle).unwrap();
    insert(&handle, 2).unwrap();
    provider.close(&handle).unwrap();
    provider.close(&handle).unwrap();
    provider.rollback(&handle).unwrap();
    let stats = provider.stats();
    assert_eq!((stats.open, stats.idle), (1, 1));
    assert!(database.keys().is_empty());
}

// case DB-10
#[test]
fn an_abort_severs_and_commits_nothing() {
    let database = Database::new();
    let provider = &database.provider;
    let handle = database.handle();
    provider.begin(&handle).unwrap();
    insert(&handle, 1).unwrap();
    for _ in 0..2 {
        assert_eq!(
            provider.abort(&handle, Instant::now()).unwrap(),
            Abort::Severed
        );
    }
    let error = count(&handle).unwrap_err();
    assert!(is_illegal_state(&error), "{error}");
    assert!(error.to_string().contains("severed"), "{error}");
    assert!(provider.commit(&handle).is_err());
    provider.close(&handle).unwrap();
    // The connection was not handed back but dropped.
    assert_eq!(provider.stats().open, 0);
    assert!(database.keys().is_empty());
    let next = database.handle();
    assert_eq!(count(&next).unwrap(), 0);
}

#[test]
fn an_abort_ends_a_statement_that_runs_on_another_thread() {
    let database = Database::new();
    let provider = &database.provider;
    let handle = database.handle();
    let (begun, running) = mpsc::channel();
    thread::scope(|scope| {
        let job = scope.spawn(|| {
            handle.with(|conn| {
                begun.send(()).unwrap();
                endless(conn)
            })
        });
        running.recv().unwrap();
        assert_eq!(
            provider.abort(&handle, in_a_minute()).unwrap(),
            Abort::Severed
        );
        let error = job.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("severed"), "{error}");
    });
    assert_eq!(provider.stats().open, 0);
}

#[test]
fn a_close_ends_a_statement_without_waiting_and_the_connection_follows() {
    let database = Database::new();
    let provider = &database.provider;
    let handle = database.handle();
    let (begun, running) = mpsc::channel();
    let (held, dropped) = permit();
    thread::scope(|scope| {
        let job = scope.spawn(|| {
            handle.with(|conn| {
                begun.send(()).unwrap();
                endless(conn)
            })
        });
        running.recv().unwrap();
        provider.close(&handle).unwrap();
        provider.keep_until_gone(&handle, held);
        dropped.recv().unwrap();
        let error = job.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
    });
    let stats = provider.stats();
    assert_eq!((stats.open, stats.idle), (1, 1));
}

#[test]
fn a_call_that_outlasts_the_abort_leaves_an_orphan_that_keeps_its_permit() {
    let clock = ManualClock::new();
    let database = Database::with(|builder| builder.clock(Arc::new(clock.clone())));
    let provider = &database.provider;
    let (gate, write_gate) = (provider.admission(), provider.write_admission().unwrap());
    let handle = database.handle();
    provider.begin(&handle).unwrap();
    insert(&handle, 1).unwrap();
    let (begun, running) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (held, dropped) = permit();
    thread::scope(|scope| {
        // Inside, so that a failed assertion lets the other thread go.
        let release = release;
        let (handle, stuck) = (&handle, handle.clone());
        scope.spawn(move || {
            stuck.with(|_| {
                begun.send(()).unwrap();
                let _ = released.recv();
                Ok(())
            })
        });
        running.recv().unwrap();
        let deadline = clock.now() + Duration::from_secs(5);
        let abort = scope.spawn(move || provider.abort(handle, deadline).unwrap());
        clock.advance(Duration::from_secs(5));
        assert_eq!(abort.join().unwrap(), Abort::Orphaned);
        assert_eq!(provider.abort(handle, deadline).unwrap(), Abort::Orphaned);
        provider.keep_until_gone(handle, held);
        assert_eq!((gate.orphaned(), write_gate.orphaned()), (1, 1));
        let status = gate.describe(gate.key());
        assert_eq!(status.indicator.as_deref(), Some("orphaned:1"));
        // It counts as open, and its permit is still out.
        assert_eq!(provider.stats().open, 1);
        assert!(dropped.try_recv().is_err());
        provider.close(handle).unwrap();
        assert_eq!(gate.orphaned(), 1);

        release.send(()).unwrap();
        dropped.recv().unwrap();
        assert_eq!((gate.orphaned(), write_gate.orphaned()), (0, 0));
        assert_eq!(provider.stats().open, 0);
        assert_eq!(provider.abort(handle, deadline).unwrap(), Abort::Severed);
    });
    assert!(database.keys().is_empty());
}

// case DB-11
#[test]
fn a_read_only_declaration_reaches_the_connection_and_does_not_stick() {
    let database = Database::with(|builder| builder.max_connections(1));
    let provider = &database.provider;
    let handle = provider.acquire(true, None).unwrap();
    let error = insert(&handle, 1).unwrap_err();
    assert!(is_illegal_state(&error), "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    provider.begin(&handle).unwrap();
    assert_eq!(count(&handle).unwrap(), 0);
    provider.close(&handle).unwrap();

    let handle = database.handle();
    insert(&handle, 2).unwrap();
    handle
        .with(|conn| conn.pragma_update(None, "query_only", true))
        .unwrap();
    provider.close(&handle).unwrap();

    let handle = database.handle();
    insert(&handle, 3).unwrap();
    assert_eq!(provider.stats().peak_open, 1);
    assert_eq!(database.keys(), [2, 3]);
}

// case DB-12
#[test]
fn a_thread_that_waits_on_a_handle_is_released_by_its_close() {
    let database = Database::with(|builder| builder.busy_wait(Duration::from_secs(3_600)));
    let provider = &database.provider;
    let outside = database.outside();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let handle = database.handle();
    let (release, released) = mpsc::channel::<()>();
    let (begun, running) = mpsc::channel();
    thread::scope(|scope| {
        // Inside, so that a failed assertion lets the other thread go.
        let release = release;
        // The holder leaves only when told to, so the waiter waits until the close.
        let lent = &handle;
        let holder = scope.spawn(move || {
            lent.with(|_| {
                begun.send(()).unwrap();
                let _ = released.recv();
                Ok(())
            })
        });
        running.recv().unwrap();
        let waiter = scope.spawn(|| count(&handle));
        let beginner = scope.spawn(|| provider.begin(&handle));
        provider.close(&handle).unwrap();
        assert!(is_illegal_state(&waiter.join().unwrap().unwrap_err()));
        assert!(is_illegal_state(&beginner.join().unwrap().unwrap_err()));
        release.send(()).unwrap();
        holder.join().unwrap().unwrap();
    });
    assert_eq!(database.out(), 0);
}

// case DB-15
#[test]
fn without_a_transaction_statements_commit_and_a_close_restores_that() {
    let database = Database::with(|builder| builder.max_connections(1));
    let provider = &database.provider;
    let handle = database.handle();
    insert(&handle, 1).unwrap();
    assert_eq!(database.keys(), [1]);
    // A transaction of the job's own, left open.
    handle.with(|conn| conn.execute_batch("BEGIN")).unwrap();
    insert(&handle, 2).unwrap();
    provider.close(&handle).unwrap();

    let handle = database.handle();
    let autocommit = handle.with(|conn| Ok(conn.is_autocommit())).unwrap();
    assert!(autocommit);
    let query_only: bool = handle
        .with(|conn| conn.pragma_query_value(None, "query_only", |row| row.get(0)))
        .unwrap();
    assert!(!query_only);
    insert(&handle, 3).unwrap();
    assert_eq!(database.keys(), [1, 3]);
    assert_eq!(provider.stats().peak_open, 1);
}

// case DB-16
#[test]
fn the_registry_finds_providers_by_name_and_type() {
    let database = Database::new();
    let registry = DbResourceProviders::new();
    let error = registry
        .get::<SqliteProvider>("orders")
        .unwrap_err()
        .to_string();
    assert!(error.contains("'orders'"), "{error}");
    assert!(error.contains("none at all"), "{error}");

    registry.register(&database.provider).unwrap();
    registry.register(&database.provider).unwrap();
    let found = registry.get::<SqliteProvider>("orders").unwrap();
    assert!(Arc::ptr_eq(&found, &database.provider));

    let audit = Arc::new(CountingDbResourceProvider::new("audit", 1).unwrap());
    registry.register(&audit).unwrap();
    let taken = Arc::new(CountingDbResourceProvider::new("orders", 1).unwrap());
    let error = registry.register(&taken).unwrap_err();
    assert!(is_illegal_state(&error), "{error}");
    assert!(error.to_string().contains("'orders'"), "{error}");
    let found = registry.get::<SqliteProvider>("orders").unwrap();
    assert!(Arc::ptr_eq(&found, &database.provider));

    let error = registry
        .get::<SqliteProvider>("billing")
        .unwrap_err()
        .to_string();
    assert!(error.contains("'billing'"), "{error}");
    assert!(error.contains("audit, orders"), "{error}");
    let error = registry
        .get::<SqliteProvider>("audit")
        .unwrap_err()
        .to_string();
    assert!(error.contains("CountingDbResourceProvider"), "{error}");
    assert!(error.contains("SqliteProvider"), "{error}");
    assert_eq!(registry.names(), ["audit", "orders"]);
}

#[test]
fn a_panic_inside_a_transaction_is_rolled_back_and_its_connection_discarded() {
    let database = Database::new();
    let provider = &database.provider;
    let handle = database.handle();
    provider.begin(&handle).unwrap();
    insert(&handle, 1).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        handle.with(|conn| -> rusqlite::Result<()> {
            conn.execute("INSERT INTO keys VALUES (2)", [])?;
            unwind()
        })
    }));
    assert!(panic.is_err());
    for refused in [provider.commit(&handle), count(&handle).map(drop)] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }
    provider.rollback(&handle).unwrap();
    provider.close(&handle).unwrap();
    assert_eq!(provider.stats().open, 0);
    assert!(database.keys().is_empty());
}

#[test]
fn a_transaction_that_is_gone_cannot_be_committed() {
    let database = Database::new();
    let provider = &database.provider;
    let handle = database.handle();
    provider.begin(&handle).unwrap();
    assert!(is_illegal_state(&provider.begin(&handle).unwrap_err()));
    insert(&handle, 1).unwrap();
    handle.with(|conn| conn.execute_batch("ROLLBACK")).unwrap();
    let error = provider.commit(&handle).unwrap_err();
    assert!(is_illegal_state(&error), "{error}");
    assert!(error.to_string().contains("gone"), "{error}");
    provider.commit(&handle).unwrap();
    assert!(database.keys().is_empty());
}

#[test]
fn a_call_inside_a_call_is_refused_and_another_thread_waits_its_turn() {
    let database = Database::new();
    let handle = database.handle();
    let error = handle.with(|_| Ok(count(&handle))).unwrap().unwrap_err();
    assert!(is_illegal_state(&error), "{error}");
    assert!(error.to_string().contains("inside a call"), "{error}");

    let (begun, running) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Inside, so that a failed assertion lets the other thread go.
        let release = release;
        let lent = &handle;
        scope.spawn(move || {
            lent.with(|conn| {
                begun.send(()).unwrap();
                let _ = released.recv();
                conn.execute("INSERT INTO keys VALUES (1)", [])
            })
        });
        running.recv().unwrap();
        let second = scope.spawn(|| count(&handle));
        release.send(()).unwrap();
        assert_eq!(second.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn a_locked_database_says_what_to_do() {
    let database = Database::with(|builder| builder.busy_wait(Duration::ZERO));
    let outside = database.outside();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let handle = database.handle();
    // A busy timeout of the job's own would hold for the rest of its call alone.
    handle
        .with(|conn| conn.busy_timeout(Duration::from_secs(3_600)))
        .unwrap();
    for refused in [
        database.provider.begin(&handle),
        insert(&handle, 1).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(is_external(&error), "{error}");
        let text = error.to_string();
        assert!(text.contains("database 'orders'"), "{text}");
        assert!(text.contains("orders.db"), "{text}");
        assert!(text.contains("busy_wait"), "{text}");
        assert!(std::error::Error::source(&error).is_some());
    }
    outside.execute_batch("ROLLBACK").unwrap();
    database.provider.begin(&handle).unwrap();
}

#[test]
fn a_wait_for_a_lock_ends_at_the_deadline_of_the_job() {
    let clock = ManualClock::new();
    let database = Database::with(|builder| {
        builder
            .busy_wait(Duration::from_secs(3_600))
            .clock(Arc::new(clock.clone()))
    });
    let outside = database.outside();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let deadline = clock.now() + Duration::from_secs(10);
    let handle = database.provider.acquire(false, Some(deadline)).unwrap();
    thread::scope(|scope| {
        let begin = scope.spawn(|| database.provider.begin(&handle));
        clock.advance(Duration::from_secs(10));
        assert!(is_external(&begin.join().unwrap().unwrap_err()));
    });
}

#[test]
fn a_file_that_cannot_serve_is_found_out_at_the_open() {
    let folder = tempfile::tempdir().unwrap();
    let garbage = folder.path().join("garbage.db");
    std::fs::write(
        &garbage,
        "no database, but long enough to have a header".repeat(100),
    )
    .unwrap();
    let missing = folder.path().join("nowhere").join("orders.db");
    for (path, advice) in [(garbage, "backup"), (missing, "directory exists")] {
        let error = SqliteProvider::open(&path).unwrap_err();
        assert!(is_external(&error), "{error}");
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()), "{text}");
        assert!(text.contains(advice), "{text}");
    }
}

#[test]
fn a_database_that_turns_corrupt_fails_as_a_service() {
    let database = Database::new();
    let handle = database.handle();
    for key in 0..500 {
        insert(&handle, key).unwrap();
    }
    database
        .outside()
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    database.provider.close(&handle).unwrap();
    let mut bytes = std::fs::read(database.path()).unwrap();
    bytes[4_096..].fill(0xAB);
    std::fs::write(database.path(), bytes).unwrap();
    let fresh = SqliteProvider::open(database.path()).unwrap();
    let handle = fresh.acquire(true, None).unwrap();
    let error = count(&handle).unwrap_err();
    assert!(is_external(&error), "{error}");
    assert!(error.to_string().contains("backup"), "{error}");
}

#[test]
fn settings_that_break_a_rule_are_refused_by_field() {
    let builder = || SqliteProvider::builder("orders.db");
    for (refused, field) in [
        (SqliteProvider::open(":memory:"), "path"),
        (SqliteProvider::open(""), "path"),
        (SqliteProvider::open("file:orders.db?mode=memory"), "path"),
        (builder().max_connections(0).open(), "max_connections"),
        (builder().name(" ").open(), "name"),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidInput { parameter, .. } if parameter == field),
            "{error}"
        );
    }
    assert!(!PathBuf::from("orders.db").exists());
}

#[test]
fn more_sessions_than_permits_are_refused_and_never_opened() {
    let database = Database::with(|builder| builder.max_connections(2));
    let provider = &database.provider;
    let (first, second) = (database.handle(), database.handle());
    let error = provider.acquire(false, None).unwrap_err();
    assert!(is_illegal_state(&error), "{error}");
    assert!(error.to_string().contains("db:orders"), "{error}");
    // A session that nobody closes gives its connection back when its last handle goes.
    drop(first);
    assert_eq!(database.out(), 1);
    provider.close(&second).unwrap();
    assert_eq!(provider.stats().peak_open, 2);
}

#[test]
fn errors_of_a_call_keep_their_meaning() {
    let database = Database::new();
    let handle = database.handle();
    let error = handle
        .with(|conn| conn.execute("INSERT INTO nowhere VALUES (1)", []))
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    assert!(error.to_string().contains("'orders'"), "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");

    let error = handle
        .try_with(|conn| -> Result<i64, JobError> {
            Ok(conn.query_row("SELECT x FROM nowhere", [], |row| row.get(0))?)
        })
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    assert!(error.to_string().contains("'orders'"), "{error}");

    let error = handle
        .try_with(|_| Err::<(), _>(JobError::not_found("order", "A7")))
        .unwrap_err();
    assert!(error.is_correctable());
    assert_eq!(handle.try_with(|_| Ok::<_, JobError>(7)).unwrap(), 7);
}

#[test]
fn the_time_that_connections_are_held_and_used_is_measured() {
    let clock = ManualClock::new();
    let database = Database::with(|builder| builder.clock(Arc::new(clock.clone())));
    let handle = database.handle();
    clock.advance(Duration::from_secs(3));
    handle
        .with(|_| {
            clock.advance(Duration::from_secs(2));
            Ok(())
        })
        .unwrap();
    assert_eq!(database.provider.stats().held, Duration::ZERO);
    database.provider.close(&handle).unwrap();
    let stats = database.provider.stats();
    assert_eq!(stats.in_calls, Duration::from_secs(2));
    assert_eq!(stats.held, Duration::from_secs(5));
}

#[test]
fn each_new_connection_is_prepared_before_a_job_has_it() {
    let database = Database::with(|builder| {
        builder.on_open(|conn| conn.execute_batch("CREATE TEMP TABLE mark (x)"))
    });
    for handle in [database.handle(), database.handle()] {
        handle
            .with(|conn| conn.execute("INSERT INTO mark VALUES (1)", []))
            .unwrap();
    }
    let mode: String = database
        .handle()
        .with(|conn| conn.pragma_query_value(None, "journal_mode", |row| row.get(0)))
        .unwrap();
    assert_eq!(mode, "wal");
}

/// A provider that does one thing wrong, over the one that does not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    CommitDoesNot,
    CloseDoesNot,
    RollbackDoesNot,
    AbortDoesNot,
    AbortCommits,
    TakesForeignHandles,
    IgnoresReadOnly,
    ReturnsPermitsEarly,
}

struct Faulty {
    inner: SqliteProvider,
    fault: Fault,
    leaked: std::sync::Mutex<Vec<SqliteHandle>>,
}

impl Faulty {
    fn forgive(&self, result: Result<(), JobError>) -> Result<(), JobError> {
        match result {
            Err(error) if error.to_string().contains("another provider") => match self.fault {
                Fault::TakesForeignHandles => Ok(()),
                _ => Err(error),
            },
            other => other,
        }
    }
}

impl DbResourceProvider for Faulty {
    type Handle = SqliteHandle;

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn admission(&self) -> Arc<nucleo_runtime::admission::DatabaseGate> {
        self.inner.admission()
    }

    fn write_admission(&self) -> Option<Arc<nucleo_runtime::admission::DatabaseGate>> {
        self.inner.write_admission()
    }

    fn acquire(
        &self,
        read_only: bool,
        deadline: Option<Instant>,
    ) -> Result<SqliteHandle, JobError> {
        let read_only = read_only && self.fault != Fault::IgnoresReadOnly;
        self.inner.acquire(read_only, deadline)
    }

    fn begin(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        self.forgive(self.inner.begin(handle))
    }

    fn commit(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        match self.fault {
            Fault::CommitDoesNot => self.inner.rollback(handle),
            _ => self.forgive(self.inner.commit(handle)),
        }
    }

    fn await_visible(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        self.forgive(self.inner.await_visible(handle))
    }

    fn rollback(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        match self.fault {
            Fault::RollbackDoesNot => Ok(()),
            _ => self.forgive(self.inner.rollback(handle)),
        }
    }

    fn close(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        if self.fault == Fault::CloseDoesNot {
            self.leaked.lock().unwrap().push(handle.clone());
            return self.inner.rollback(handle);
        }
        self.forgive(self.inner.close(handle))
    }

    fn abort(&self, handle: &SqliteHandle, deadline: Instant) -> Result<Abort, JobError> {
        match self.fault {
            Fault::AbortDoesNot => self.await_visible(handle).map(|()| Abort::Severed),
            Fault::AbortCommits => {
                let _ = self.inner.commit(handle);
                self.inner.abort(handle, deadline)
            }
            _ => match self.inner.abort(handle, deadline) {
                Ok(abort) => Ok(abort),
                Err(error) => self.forgive(Err(error)).map(|()| Abort::Severed),
            },
        }
    }

    fn keep_until_gone(&self, handle: &SqliteHandle, permit: HeldPermit) {
        match self.fault {
            Fault::ReturnsPermitsEarly => drop(permit),
            _ => self.inner.keep_until_gone(handle, permit),
        }
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    fault: Fault,
    provider: Arc<Faulty>,
    jobs: u64,
}

impl Fixture {
    fn new(fault: Fault, jobs: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let provider = Self::open(&folder, "orders", fault);
        Self {
            folder,
            fault,
            provider,
            jobs,
        }
    }

    fn open(folder: &tempfile::TempDir, name: &str, fault: Fault) -> Arc<Faulty> {
        let inner = SqliteProvider::builder(folder.path().join(name))
            .max_connections(3)
            // What is lost in a power cut is not under test, and is most of the time.
            .on_open(|conn| {
                conn.execute_batch(
                    "PRAGMA synchronous = off;
                     CREATE TABLE IF NOT EXISTS keys (key INTEGER PRIMARY KEY)",
                )
            })
            .open()
            .unwrap();
        Arc::new(Faulty {
            inner,
            fault,
            leaked: std::sync::Mutex::default(),
        })
    }
}

impl DbFixture for Fixture {
    type Provider = Faulty;

    fn provider(&self) -> &Arc<Faulty> {
        &self.provider
    }

    fn another(&self) -> Arc<Faulty> {
        Self::open(&self.folder, "audit", self.fault)
    }

    fn write(&self, handle: &SqliteHandle, key: u64) -> Result<(), JobError> {
        handle
            .with(|conn| conn.execute("INSERT INTO keys VALUES (?1)", [key as i64]))
            .map(drop)
    }

    fn has(&self, handle: &SqliteHandle, key: u64) -> Result<bool, JobError> {
        handle.with(|conn| {
            conn.prepare("SELECT 1 FROM keys WHERE key = ?1")?
                .exists([key as i64])
        })
    }

    fn stall(&self, handle: &SqliteHandle, begun: &dyn Fn()) -> Result<(), JobError> {
        // The provider that does not abort would leave the test here for minutes.
        if self.fault == Fault::AbortDoesNot {
            begun();
            return Ok(());
        }
        handle
            .with(|conn| {
                begun();
                endless(conn)
            })
            .map(drop)
    }

    fn panic_inside(&self, handle: &SqliteHandle, key: u64) {
        let _ = handle.with(|conn| -> rusqlite::Result<()> {
            conn.execute("INSERT INTO keys VALUES (?1)", [key as i64])?;
            unwind()
        });
    }

    fn connections(&self) -> Connections {
        let stats = self.provider.inner.stats();
        Connections {
            out: stats.open - stats.idle,
            peak: stats.peak_open,
        }
    }

    fn unreachable(&self) -> Option<JobError> {
        SqliteProvider::open(self.folder.path().join("nowhere").join("x.db")).err()
    }

    fn jobs(&self) -> u64 {
        self.jobs
    }
}

#[test]
fn sqlite_keeps_the_contract_of_providers() {
    check(&Fixture::new(Fault::None, 10_000));
}

#[test]
fn the_contract_finds_every_planted_fault() {
    for (fault, rule) in [
        (Fault::CommitDoesNot, "visible once it was awaited"),
        (Fault::CloseDoesNot, "gives the connection back"),
        (Fault::RollbackDoesNot, "begin after a rollback"),
        (Fault::AbortDoesNot, "aborted handle serves nothing"),
        (Fault::AbortCommits, "an abort commits nothing"),
        (Fault::TakesForeignHandles, "of another provider is refused"),
        (Fault::IgnoresReadOnly, "declared read-only refuses"),
        (Fault::ReturnsPermitsEarly, "keeps its permit"),
    ] {
        let panic = catch_unwind(|| check(&Fixture::new(fault, 64)))
            .expect_err("the kit passed a provider that breaks a rule");
        let text = panic
            .downcast_ref::<String>()
            .unwrap_or_else(|| panic!("{fault:?} ended without a message"));
        assert!(text.contains(rule), "{fault:?}: {text}");
    }
}

#[test]
fn providers_and_handles_cross_threads() {
    fn crosses<T: Send + Sync + std::fmt::Debug>() {}
    crosses::<SqliteProvider>();
    crosses::<SqliteHandle>();
    crosses::<SqliteBuilder>();
    crosses::<CountingDbResourceProvider>();
    crosses::<DbResourceProviders>();
    crosses::<HeldPermit>();
}

#[test]
fn what_a_job_changes_of_its_session_is_gone_for_the_next() {
    let database = Database::with(|builder| {
        builder.max_connections(1).on_open(|conn| {
            conn.execute_batch("PRAGMA recursive_triggers = on; CREATE TEMP TABLE own (x)")
        })
    });
    let provider = &*database.provider;
    let run = |read_only: bool, sql: &str| {
        let handle = provider.acquire(read_only, None).unwrap();
        let result = handle.with(|conn| conn.execute_batch(sql));
        provider.close(&handle).unwrap();
        result
    };
    let look = |sql: &str| -> Result<i64, JobError> {
        let handle = provider.acquire(false, None).unwrap();
        let found = handle.with(|conn| conn.query_row(sql, [], |row| row.get(0)));
        provider.close(&handle).unwrap();
        found
    };
    for read_only in [false, true] {
        for (change, left) in [
            (
                "CREATE TEMP TABLE secret AS SELECT 7 AS x",
                "SELECT count(*) FROM temp.sqlite_master WHERE name = 'secret'",
            ),
            (
                "CREATE TEMP VIEW keys AS SELECT 99 AS key",
                "SELECT count(*) FROM keys",
            ),
            (
                "CREATE TEMP TRIGGER forger AFTER INSERT ON main.keys BEGIN SELECT 1; END",
                "SELECT count(*) FROM temp.sqlite_master WHERE name = 'forger'",
            ),
            ("INSERT INTO own VALUES (1)", "SELECT count(*) FROM own"),
            (
                "ATTACH ':memory:' AS other",
                "SELECT count(*) FROM pragma_database_list WHERE name = 'other'",
            ),
            (
                "PRAGMA case_sensitive_like = on",
                "SELECT NOT ('a' LIKE 'A')",
            ),
            (
                "PRAGMA ignore_check_constraints = on",
                "SELECT * FROM pragma_ignore_check_constraints",
            ),
            (
                "PRAGMA query_only = off; PRAGMA query_only = on",
                "SELECT * FROM pragma_query_only",
            ),
        ] {
            // Read only some of them are refused, which is as good.
            assert!(run(read_only, change).is_ok() || read_only, "{change}");
            assert_eq!(look(left).unwrap(), 0, "{change} (read only: {read_only})");
            // What the provider set up is there again.
            assert_eq!(look("SELECT * FROM pragma_recursive_triggers").unwrap(), 1);
            assert_eq!(look("SELECT count(*) FROM own").unwrap(), 0);
        }
    }
    run(false, "INSERT INTO keys VALUES (1)").unwrap();
    assert_eq!(database.keys(), [1]);
    let stats = provider.stats();
    assert_eq!((stats.open, stats.idle, stats.peak_open), (1, 1, 1));
}

#[test]
fn a_job_that_changes_nothing_of_its_session_leaves_the_connection_to_the_next() {
    let opened = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&opened);
    let database = Database::with(move |builder| {
        builder.max_connections(1).on_open(move |conn| {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            conn.execute_batch("PRAGMA foreign_keys = on")
        })
    });
    let provider = &*database.provider;
    for read_only in [false, true, false, true] {
        let handle = provider.acquire(read_only, None).unwrap();
        handle
            .with(|conn| {
                if !read_only {
                    conn.execute_batch(
                        "BEGIN; INSERT INTO keys VALUES (1); SAVEPOINT here; COMMIT",
                    )?;
                    conn.execute_batch(
                        "CREATE TABLE IF NOT EXISTS more (x); ANALYZE; PRAGMA optimize",
                    )?;
                }
                conn.execute_batch(
                    "PRAGMA table_info(keys); PRAGMA foreign_keys; SELECT * FROM keys",
                )
            })
            .unwrap();
        provider.close(&handle).unwrap();
    }
    assert_eq!(opened.load(std::sync::atomic::Ordering::SeqCst), 1);
}
