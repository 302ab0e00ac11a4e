//! A Prometheus page of an outbox, while messages flow: some of them come again, and some become dead letters.
//!
//! ```sh
//! cargo run -p posthaste --example metrics                                           # on an embedded SQLite file
//! cargo run -p posthaste --example metrics -- --port 9100 postgres://user@localhost/shop   # on a server: also mysql://…
//! curl http://127.0.0.1:9100/metrics
//! ```
//!
//! It ends with Ctrl-C, or after `--seconds N`; then it looks at its own page, and fails unless that shows delivered messages.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use posthaste::{
    Backend, EnqueueMessage, LeasedMessageHandler, MessageResult, Outbox, OutboxError, OutboxMessage,
    OutboxProfile, Partitions, WorkerTuning,
};
use sqlx::{MySqlPool, PgPool, Pool, SqlitePool};
use tokio::net::TcpListener;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Sends mails: every fifth has to be tried twice, every eighth has no address.
struct Send;

impl LeasedMessageHandler for Send {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        tokio::time::sleep(Duration::from_millis(5)).await;
        match msg.id.0 {
            id if id % 5 == 0 && msg.attempts == 0 => MessageResult::Retry,
            id if id % 8 == 0 => MessageResult::Reject("no address".to_owned()),
            _ => MessageResult::Ok,
        }
    }
}

/// Must be installed before the outbox starts. Buckets make histograms of what would be summaries, which cannot be added up
/// over processes.
fn record() -> Result<PrometheusHandle> {
    let seconds = [0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0];
    let messages = [1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0];
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &seconds)?
        .set_buckets_for_metric(Matcher::Suffix("_messages".to_owned()), &messages)?;
    Ok(recorder.install_recorder()?)
}

/// Serves the page; returns where.
async fn serve(prometheus: PrometheusHandle, port: u16) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let page = get(move || async move {
        // Folds what was recorded since the last look into the buckets.
        prometheus.run_upkeep();
        prometheus.render()
    });
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/metrics", page)).await });
    Ok(address)
}

/// What anybody gets who asks for the page.
fn fetch(address: SocketAddr) -> std::io::Result<String> {
    let mut server = TcpStream::connect(address)?;
    server.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(server, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    server.read_to_string(&mut page)?;
    Ok(page)
}

/// Places some orders a second, until it is dropped.
async fn produce<DB: Backend>(outbox: &Outbox<DB>) -> Result<(), OutboxError> {
    for number in 1_u32.. {
        let placing = outbox.transaction(async |tx| {
            // Here the order itself would be saved.
            let message =
                EnqueueMessage::new(format!("order {number}")).key(format!("customer-{}", number % 7));
            outbox.enqueue(tx, "mails", message).await
        });
        placing.await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn run<DB: Backend>(pool: Pool<DB>, options: &Options) -> Result<()> {
    let prometheus = record()?;
    let retries = WorkerTuning::processor_low_latency().retry_base(Duration::from_millis(50));
    let handle = Outbox::builder(pool)
        .profile(OutboxProfile::low_latency())
        .processor_tuning(retries)
        .queue("mails", Partitions::of(4))
        .leased(Send)
        .start()
        .await?;
    let address = serve(prometheus, options.port).await?;
    println!("http://{address}/metrics");

    let outbox = handle.outbox();
    let end = async {
        match options.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        stopped = produce(&outbox) => stopped?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        () = end => {}
    }
    if options.seconds.is_some() {
        check(&tokio::task::spawn_blocking(move || fetch(address)).await??)?;
    }
    handle.stop().await;
    Ok(())
}

/// The page must show that messages were delivered.
fn check(page: &str) -> Result<()> {
    let value = |series: &str| {
        let line = page.lines().find(|line| line.starts_with(series));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        value.ok_or_else(|| format!("the page has no {series}"))
    };
    for series in [
        "posthaste_enqueued_total{queue=\"mails\"}",
        "posthaste_settled_total{queue=\"mails\",outcome=\"done\"}",
        "posthaste_settled_total{queue=\"mails\",outcome=\"rejected\"}",
        "posthaste_retries_total{queue=\"mails\"}",
        "posthaste_time_in_outbox_seconds_count{queue=\"mails\"}",
    ] {
        let value = value(series)?;
        println!("{series} {value}");
        if value <= 0.0 {
            return Err(format!("{series} is {value}: nothing was delivered").into());
        }
    }
    Ok(())
}

#[derive(Default)]
struct Options {
    url: Option<String>,
    port: u16,
    seconds: Option<u64>,
}

fn options() -> Result<Options> {
    let (mut options, mut arguments) = (Options::default(), std::env::args().skip(1));
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().ok_or(format!("{argument} needs a number"));
        match &*argument {
            "--port" => options.port = number()?.parse()?,
            "--seconds" => options.seconds = Some(number()?.parse()?),
            _ => options.url = Some(argument),
        }
    }
    Ok(options)
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options()?;
    let Some(url) = options.url.clone().or_else(|| std::env::var("DATABASE_URL").ok()) else {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("shop.db");
        let pool = SqlitePool::connect(&format!("sqlite://{}?mode=rwc", file.display())).await?;
        return run(pool, &options).await;
    };
    match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => run(PgPool::connect(&url).await?, &options).await,
        "mysql" | "mariadb" => run(MySqlPool::connect(&url).await?, &options).await,
        "sqlite" => run(SqlitePool::connect(&url).await?, &options).await,
        other => Err(format!("{other:?} is no database of ours: use postgres:, mysql: or sqlite:").into()),
    }
}
