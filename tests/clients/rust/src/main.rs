//! The Rust client of test_official_clients.py, whose docstring lists the lines that each client prints.
//! This client has simple consumers only, and no recall.

use std::env;
use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use tokio::sync::Mutex;
use tokio::time::sleep;

static SENDING: AtomicBool = AtomicBool::new(true);
static RECEIVING: AtomicBool = AtomicBool::new(true);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let producer = started_producer("N").await?;
    let ordered = started_producer("F").await?;
    let delayed = started_producer("D").await?;
    let of_transactions = Mutex::new(None);
    let mut receivers = Vec::new();
    for (topic, group) in [("N", "push"), ("F", "ordered"), ("D", "simple"), ("X", "simple")] {
        receivers.push(tokio::spawn(receive(started_consumer(topic, group).await?, topic)));
    }
    let senders = async {
        tokio::join!(
            repeat(|number| send(&producer, "N", format!("n-{number}"), MessageBuilder::builder())),
            repeat(|number| {
                let group = ["a", "b"][number % 2];
                let message = MessageBuilder::builder().set_message_group(group);
                send(&ordered, "F", format!("f-{group}-{number}"), message)
            }),
            repeat(|number| send_delayed(&delayed, number.to_string(), 2)),
            repeat(|number| transaction(&of_transactions, number)),
        );
        send_delayed(&delayed, "last".to_string(), 4).await
    };
    let stop = async {
        line().await;
        SENDING.store(false, SeqCst);
    };
    let (_, sent) = tokio::join!(stop, senders);
    sent?;
    line().await;
    RECEIVING.store(false, SeqCst);
    for receiver in receivers {
        receiver.await?;
    }
    Ok(())
}

fn client() -> ClientOption {
    let arguments: Vec<String> = env::args().collect();
    let mut option = ClientOption::default();
    option.set_access_url(&arguments[1]);
    option.set_enable_tls(arguments[4] == "tls");
    option.set_long_polling_timeout(Duration::from_secs(5));
    if !arguments[2].is_empty() {
        option.set_access_key(&arguments[2]);
        option.set_secret_key(&arguments[3]);
    }
    option
}

fn of_topic(topic: &str) -> ProducerOption {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    option
}

async fn started_producer(topic: &str) -> Outcome<Producer> {
    let mut producer = Producer::new(of_topic(topic), client())?;
    producer.start().await?;
    Ok(producer)
}

async fn started_consumer(topic: &str, group: &str) -> Outcome<SimpleConsumer> {
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(group);
    option.set_topics(vec![topic]);
    let mut consumer = SimpleConsumer::new(option, client())?;
    consumer.start().await?;
    Ok(consumer)
}

async fn repeat<F: Future<Output = Outcome<()>>>(turn: impl Fn(usize) -> F) {
    let mut number = 0;
    while SENDING.load(SeqCst) {
        if let Err(error) = turn(number).await {
            eprintln!("{error}");
        }
        number += 1;
        sleep(Duration::from_millis(100)).await;
    }
}

async fn send(producer: &Producer, topic: &str, body: String, message: MessageBuilder) -> Outcome<()> {
    producer.send(message.set_topic(topic).set_body(body.clone().into_bytes()).build()?).await?;
    say("sent", topic, &body);
    Ok(())
}

/// Delivery times are whole seconds.
async fn send_delayed(producer: &Producer, name: String, seconds: i64) -> Outcome<()> {
    let due_s = now_ms() / 1000 + seconds;
    let message = MessageBuilder::builder().set_delivery_timestamp(due_s);
    send(producer, "D", format!("d-{name}-{}", due_s * 1000), message).await
}

/// Every twentieth transaction is the first of a new producer. After a promotion, an old producer never opens Telemetry
/// again, so the broker cannot ask it how transactions ended.
async fn transaction(current: &Mutex<Option<Producer>>, number: usize) -> Outcome<()> {
    let mut current = current.lock().await;
    if number % 20 == 0 || current.is_none() {
        let checker = Box::new(|_, view| check(&view));
        let mut producer = Producer::new_transaction_producer(of_topic("X"), client(), checker)?;
        producer.start().await?;
        if let Some(old) = current.replace(producer) {
            old.shutdown().await?;
        }
    }
    end(current.as_ref().unwrap(), number).await
}

/// Of three transactions one is committed, one rolled back, and one left to the broker's check.
async fn end(producer: &Producer, number: usize) -> Outcome<()> {
    let kind = ["commit", "rollback", "open"][number % 3];
    let body = format!("x-{kind}-{number}");
    let message = MessageBuilder::transaction_message_builder("X", body.clone().into_bytes()).build()?;
    let begun = producer.send_transaction_message(message).await?;
    say(if kind == "rollback" { "rolled-back" } else { "sent" }, "X", &body);
    match kind {
        "commit" => begun.commit().await?,
        "rollback" => begun.rollback().await?,
        _ => (),
    }
    Ok(())
}

fn check(view: &MessageView) -> TransactionResolution {
    let body = text(view);
    say("asked", "X", &body);
    if body.contains("rollback") {
        TransactionResolution::ROLLBACK
    } else {
        TransactionResolution::COMMIT
    }
}

async fn receive(consumer: SimpleConsumer, topic: &'static str) {
    let all = FilterExpression::new(FilterType::Tag, "*");
    while RECEIVING.load(SeqCst) {
        let views = match consumer.receive(topic, &all).await {
            Ok(views) => views,
            Err(error) => {
                eprintln!("{error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        for view in views {
            got(&view, topic);
            if let Err(error) = consumer.ack(&view).await {
                eprintln!("{error}");
            }
        }
    }
}

fn got(view: &MessageView, topic: &str) {
    let body = text(view);
    let early = topic == "D" && now_ms() < body.rsplit('-').next().unwrap().parse().unwrap();
    say(if early { "early" } else { "got" }, topic, &body);
}

fn text(view: &MessageView) -> String {
    String::from_utf8_lossy(view.body()).into_owned()
}

fn say(word: &str, topic: &str, body: &str) {
    println!("{word} {topic} {body}");
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// Waits for a line of the input, or for the end of the input.
async fn line() {
    let reading = tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new()));
    reading.await.unwrap().unwrap();
}
