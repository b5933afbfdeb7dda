//! Databases through the dispatcher: real connections under real permits.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nucleo_runtime::db::DbResourceProvider;
use nucleo_runtime::db::sqlite::SqliteProvider;
use nucleo_runtime::db::sqlite::rusqlite::Connection;
use nucleo_runtime::{
    ErrorKind, JobDispatcher, JobError, JobHandle, JobRequirements, Workflow, doer_fn, job_fn,
};

/// A file with an empty table, a provider of it, and a dispatcher.
struct Shop {
    _folder: tempfile::TempDir,
    path: PathBuf,
    orders: Arc<SqliteProvider>,
    dispatcher: JobDispatcher,
    workflow: Workflow,
}

impl Shop {
    fn new(connections: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders.db");
        let orders = SqliteProvider::builder(&path)
            .max_connections(connections)
            .open()
            .unwrap();
        Connection::open(&path)
            .unwrap()
            .execute_batch("CREATE TABLE orders (number INTEGER)")
            .unwrap();
        let orders = Arc::new(orders);
        let dispatcher = JobDispatcher::builder().database(&orders).build().unwrap();
        dispatcher.start().unwrap();
        Self {
            _folder: folder,
            path,
            orders,
            dispatcher,
            workflow: Workflow::new("alice", "shop").unwrap(),
        }
    }

    /// The numbers in the table, as somebody sees them who has nothing to do with the provider.
    fn numbers(&self) -> Vec<i64> {
        let outside = Connection::open(&self.path).unwrap();
        let mut rows = outside
            .prepare("SELECT number FROM orders ORDER BY number")
            .unwrap();
        let numbers = rows.query_map([], |row| row.get(0)).unwrap();
        numbers.map(Result::unwrap).collect()
    }

    /// Submits a job that inserts a number in a transaction and then ends like this.
    fn insert(
        &self,
        number: i64,
        end: impl Fn() -> Result<i64, JobError> + Send + 'static,
    ) -> JobHandle<i64> {
        let (needed, orders) = (Arc::clone(&self.orders), Arc::clone(&self.orders));
        let job = job_fn(
            move || JobRequirements::none().provider(&needed).transaction(),
            move |resources, _| {
                resources
                    .get(&orders)?
                    .with(|conn| conn.execute("INSERT INTO orders VALUES (?1)", [number]))?;
                end()
            },
        );
        self.dispatcher.submit(&self.workflow, job).unwrap()
    }

    fn out(&self) -> u32 {
        let stats = self.orders.stats();
        stats.open - stats.idle
    }

    fn assert_all_back(&self) {
        assert_eq!(self.orders.admission().in_use(), 0);
        assert_eq!(self.orders.write_admission().unwrap().in_use(), 0);
        assert_eq!(self.out(), 0);
    }
}

// case DB-14
#[test]
fn six_transactions_share_two_connections_and_all_of_them_write() {
    let shop = Shop::new(2);
    let (most, orders) = (Arc::new(AtomicU32::new(0)), Arc::clone(&shop.orders));
    let handles: Vec<_> = (0..6)
        .map(|number| {
            let (most, orders) = (Arc::clone(&most), Arc::clone(&orders));
            shop.insert(number, move || {
                let stats = orders.stats();
                most.fetch_max(stats.open - stats.idle, Ordering::SeqCst);
                Ok(number)
            })
        })
        .collect();
    JobHandle::join_all(&handles).unwrap();
    assert_eq!(shop.numbers(), [0, 1, 2, 3, 4, 5]);
    let most = most.load(Ordering::SeqCst);
    assert!((1..=2).contains(&most), "{most} at once");
    shop.assert_all_back();
}

#[test]
fn readers_share_the_connections_while_one_writes() {
    let shop = Shop::new(2);
    shop.insert(1, || Ok(1)).get().unwrap();
    let (writing, is_writing) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let writer = shop.insert(2, move || {
        writing.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
        Ok(2)
    });
    is_writing.recv().unwrap();
    let (needed, orders) = (Arc::clone(&shop.orders), Arc::clone(&shop.orders));
    let reader = job_fn(
        move || JobRequirements::none().provider(&needed).read_only(),
        move |resources, _| {
            resources.get(&orders)?.with(|conn| {
                conn.query_row("SELECT count(*) FROM orders", [], |row| {
                    row.get::<_, i64>(0)
                })
            })
        },
    );
    let reader = shop.dispatcher.submit(&shop.workflow, reader).unwrap();
    assert_eq!(
        *reader.get().unwrap(),
        1,
        "what is not committed is not seen"
    );
    release.send(()).unwrap();
    writer.get().unwrap();
    shop.assert_all_back();
}

#[test]
fn a_job_that_runs_after_another_sees_what_it_committed() {
    let shop = Shop::new(2);
    for number in 0..50 {
        let first = shop.insert(number, move || Ok(number));
        let (needed, orders) = (Arc::clone(&shop.orders), Arc::clone(&shop.orders));
        let second = job_fn(
            move || JobRequirements::none().provider(&needed).read_only(),
            move |resources, context| {
                let number = *context.single_dependency_result::<i64>()?;
                resources.get(&orders)?.with(|conn| {
                    conn.query_row(
                        "SELECT count(*) FROM orders WHERE number = ?1",
                        [number],
                        |row| row.get::<_, i64>(0),
                    )
                })
            },
        );
        let second = shop
            .dispatcher
            .submit_with(&shop.workflow, second)
            .after(&first)
            .submit()
            .unwrap();
        assert_eq!(*second.get().unwrap(), 1);
    }
}

// case F21
#[test]
fn a_panic_or_a_failure_inside_a_transaction_leaves_no_trace_on_the_next_one() {
    let shop = Shop::new(1);
    for round in 0..20 {
        let panicked = shop.insert(1_000 + round, || panic!("inside the transaction"));
        assert!(matches!(
            panicked.get().unwrap_err().kind(),
            ErrorKind::System { .. }
        ));
        let failed = shop.insert(2_000 + round, || Err(JobError::correctable("no")));
        assert_eq!(failed.get().unwrap_err().to_string(), "no");
        shop.insert(round, || Ok(0)).get().unwrap();
        shop.assert_all_back();
    }
    assert_eq!(shop.numbers(), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_cancelled_transaction_rolls_back_whatever_the_job_answers() {
    let shop = Shop::new(1);
    let (inserted, is_inserted) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let handle = shop.insert(1, move || {
        inserted.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
        Ok(1)
    });
    is_inserted.recv().unwrap();
    assert!(handle.cancel("not wanted any more"));
    release.send(()).unwrap();
    assert!(handle.get().unwrap_err().is_cancelled());
    assert!(shop.numbers().is_empty());
    shop.assert_all_back();
}

#[test]
fn agents_that_write_through_leaves_never_wait_for_each_other_inside_the_database() {
    let shop = Shop::new(3);
    let agents: Vec<_> = (0..20)
        .map(|agent: i64| {
            let orders = Arc::clone(&shop.orders);
            let doer = doer_fn(move |context| {
                for step in 0..3 {
                    let (needed, orders) = (Arc::clone(&orders), Arc::clone(&orders));
                    let job = job_fn(
                        move || JobRequirements::none().provider(&needed).transaction(),
                        move |resources, _| {
                            resources.get(&orders)?.with(|conn| {
                                conn.execute("INSERT INTO orders VALUES (?1)", [agent * 10 + step])
                            })
                        },
                    )
                    .timeout(Some(Duration::from_secs(60)));
                    context.submit(job)?.get()?;
                }
                Ok(())
            });
            shop.dispatcher.submit(&shop.workflow, doer).unwrap()
        })
        .collect();
    JobHandle::join_all(&agents).unwrap();
    assert_eq!(shop.numbers().len(), 60);
    shop.assert_all_back();
}
