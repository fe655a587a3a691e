//! A program that says what it does by `tracing`, as many do, and is traced with its guest by the first lines of
//! `main`.

use tracing::{Level, info, info_span, instrument, warn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

fn main() {
    tracing_subscriber::registry().with(tracing_strata::layer()).init();

    let workers: Vec<_> =
        (0..4_u32).map(|worker| std::thread::spawn(move || (0..25).for_each(|n| order(worker, n)))).collect();
    let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
    println!("orders: done, {failed} failed");
}

#[instrument(level = Level::INFO)]
fn order(worker: u32, number: u32) {
    let price = info_span!("price", currency = "EUR").in_scope(|| f64::from(number) * 1.5);
    if number % 10 == 9 {
        warn!(name: "late", number, "order {number} is late");
    }
    info!(name: "sold", pieces = number % 7 + 1, price, gift = number.is_multiple_of(2));
}
