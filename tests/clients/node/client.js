// The Node client of tests/cluster/test_official_clients.py, whose docstring lists the lines that each client prints.
'use strict';

const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const { inspect } = require('node:util');
const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const COMMIT = 1, ROLLBACK = 2; // TransactionResolution, which the package does not export
const quiet = Object.fromEntries(['debug', 'info', 'warn', 'error', 'log'].map(name => [ name, () => {} ]));
const [ endpoints, accessKey, accessSecret, tls ] = process.argv.slice(2);
const sessionCredentials = accessKey ? { accessKey, accessSecret } : undefined;
const shared = { endpoints, namespace: '', logger: quiet, sslEnabled: tls === 'tls', sessionCredentials };
let sending = true, receiving = true;

const say = (word, topic, body) => process.stdout.write(`${word} ${topic} ${body}\n`);
const failed = error => process.stderr.write(`${error}\n`);

function got(view) {
  const body = view.body.toString();
  const early = view.topic === 'D' && Date.now() < Number(body.slice(body.lastIndexOf('-') + 1));
  say(early ? 'early' : 'got', view.topic, body);
}

async function check(view) {
  const body = view.body.toString();
  say('asked', 'X', body);
  return body.includes('rollback') ? ROLLBACK : COMMIT;
}

// Each topic gets its own consumer, because a consumer of several topics misses settings that come before its last route,
// and waits for the next ones.
async function simple(topic) {
  const subscriptions = new Map([[ topic, '*' ]]);
  const consumer = new SimpleConsumer({ ...shared, consumerGroup: 'simple', subscriptions, awaitDuration: 5000 });
  await consumer.startup();
  return receive(consumer);
}

async function push(topic, consumerGroup) {
  const consume = async view => {
    got(view);
    return ConsumeResult.SUCCESS;
  };
  const subscriptions = new Map([[ topic, '*' ]]);
  await new PushConsumer({ ...shared, consumerGroup, subscriptions, messageListener: { consume } }).startup();
}

async function repeat(turn) {
  for (let number = 0; sending; number++) {
    await turn(number).catch(failed);
    await sleep(100);
  }
}

async function receive(consumer) {
  while (receiving) {
    try {
      for (const view of await consumer.receive(32, 15000)) {
        got(view);
        await consumer.ack(view);
      }
    } catch (error) {
      failed(error);
      await sleep(100);
    }
  }
}

async function main() {
  const producers = {};
  for (const topic of 'NFDX') {
    producers[topic] = new Producer({ ...shared, topic, checker: { check } });
    await producers[topic].startup();
  }
  await push('N', 'push');
  await push('F', 'ordered');

  async function send(topic, text, more = {}) {
    const receipt = await producers[topic].send({ topic, body: Buffer.from(text), ...more });
    say('sent', topic, text);
    return receipt;
  }

  // Sends two messages, and recalls the second one.
  async function delayed(number) {
    const due = Date.now() + 2000;
    await send('D', `d-${number}-${due}`, { deliveryTimestamp: new Date(due) });
    const body = `d-recalled-${number}-${due}`;
    const later = { topic: 'D', body: Buffer.from(body), deliveryTimestamp: new Date(due + 1000) };
    await producers.D.recallMessage('D', (await producers.D.send(later)).recallHandle);
    say('recalled', 'D', body);
  }

  // Of three transactions one is committed, one rolled back, and one left to the broker's check.
  async function transaction(number) {
    const kind = [ 'commit', 'rollback', 'open' ][number % 3];
    const body = `x-${kind}-${number}`;
    const begun = producers.X.beginTransaction();
    await producers.X.send({ topic: 'X', body: Buffer.from(body) }, begun);
    say(kind === 'rollback' ? 'rolled-back' : 'sent', 'X', body);
    if (kind === 'commit') await begun.commit();
    if (kind === 'rollback') await begun.rollback();
  }

  const senders = Promise.all([
    repeat(number => send('N', `n-${number}`)),
    repeat(number => {
      const messageGroup = 'ab'[number % 2];
      return send('F', `f-${messageGroup}-${number}`, { messageGroup });
    }),
    repeat(delayed),
    repeat(transaction),
  ]);
  const receivers = [ simple('D'), simple('X') ];

  const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  await input.next();
  sending = false;
  await senders;
  const due = Date.now() + 4000;
  await send('D', `d-last-${due}`, { deliveryTimestamp: new Date(due) });
  await input.next();
  receiving = false;
  await Promise.all(receivers);
  process.exit(0); // a push consumer's shutdown would wait for its poll
}

main().catch(error => {
  failed(inspect(error)); // shows the error with its cause
  process.exit(1);
});
