// The Go client of tests/cluster/test_official_clients.py, whose docstring lists the lines that each client prints.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	printing           sync.Mutex
	sending, receiving atomic.Bool
	ofTransactions     rmq.Producer
)

func main() {
	rmq.EnableSsl = os.Args[4] == "tls"
	sending.Store(true)
	receiving.Store(true)

	producer, err := rmq.NewProducer(config(""), rmq.WithTopics("N", "F", "D"))
	must(err)
	must(producer.Start())
	push("N", "push")
	push("F", "ordered")
	simple, err := rmq.NewSimpleConsumer(config("simple"), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{"D": rmq.SUB_ALL, "X": rmq.SUB_ALL}))
	must(err)
	must(simple.Start())

	var senders, receivers sync.WaitGroup
	repeat(&senders, func(number int) error {
		return send(producer, message("N", fmt.Sprintf("n-%d", number)))
	})
	repeat(&senders, func(number int) error {
		group := []string{"a", "b"}[number%2]
		ordered := message("F", fmt.Sprintf("f-%s-%d", group, number))
		ordered.SetMessageGroup(group)
		return send(producer, ordered)
	})
	repeat(&senders, func(number int) error { return delayed(producer, number) })
	repeat(&senders, transaction)
	receivers.Add(1)
	go receive(simple, &receivers)

	input := bufio.NewReader(os.Stdin)
	_, _ = input.ReadString('\n')
	sending.Store(false)
	senders.Wait()
	due := time.Now().Add(4 * time.Second)
	last := message("D", fmt.Sprintf("d-last-%d", due.UnixMilli()))
	last.SetDelayTimestamp(due)
	must(send(producer, last))
	_, _ = input.ReadString('\n')
	receiving.Store(false)
	receivers.Wait() // a push consumer's stop would wait for its poll
	must(producer.GracefulStop())
}

func config(group string) *rmq.Config {
	keys := &credentials.SessionCredentials{AccessKey: os.Args[2], AccessSecret: os.Args[3]}
	return &rmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: keys}
}

func push(topic, group string) {
	consumer, err := rmq.NewPushConsumer(config(group), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
			got(view)
			return rmq.SUCCESS
		}}))
	must(err)
	must(consumer.Start())
}

// Sends two messages, and recalls the second one.
func delayed(producer rmq.Producer, number int) error {
	due := time.Now().Add(2 * time.Second)
	kept := message("D", fmt.Sprintf("d-%d-%d", number, due.UnixMilli()))
	kept.SetDelayTimestamp(due)
	if err := send(producer, kept); err != nil {
		return err
	}
	body := fmt.Sprintf("d-recalled-%d-%d", number, due.UnixMilli())
	recalled := message("D", body)
	recalled.SetDelayTimestamp(due.Add(time.Second))
	receipts, err := producer.Send(context.Background(), recalled)
	if err != nil {
		return err
	}
	if _, err := producer.Recall(context.Background(), "D", receipts[0].RecallHandle); err != nil {
		return err
	}
	say("recalled", "D", body)
	return nil
}

// Every twentieth transaction is the first of a new producer. After a promotion, an old producer opens Telemetry only with
// its next settings, up to five minutes later, and until then the broker cannot ask it how transactions ended.
func transaction(number int) error {
	if number%20 == 0 || ofTransactions == nil {
		made, err := rmq.NewProducer(config(""), rmq.WithTopics("X"),
			rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
		must(err)
		if err := made.Start(); err != nil {
			return err
		}
		if ofTransactions != nil {
			must(ofTransactions.GracefulStop())
		}
		ofTransactions = made
	}
	return end(ofTransactions, number)
}

// Of three transactions one is committed, one rolled back, and one left to the broker's check.
func end(producer rmq.Producer, number int) error {
	kind := []string{"commit", "rollback", "open"}[number%3]
	body := fmt.Sprintf("x-%s-%d", kind, number)
	begun := producer.BeginTransaction()
	if _, err := producer.SendWithTransaction(context.Background(), message("X", body), begun); err != nil {
		return err
	}
	switch kind {
	case "commit":
		say("sent", "X", body)
		return begun.Commit()
	case "rollback":
		say("rolled-back", "X", body)
		return begun.RollBack()
	}
	say("sent", "X", body)
	return nil
}

func check(view *rmq.MessageView) rmq.TransactionResolution {
	body := string(view.GetBody())
	say("asked", "X", body)
	if strings.Contains(body, "rollback") {
		return rmq.ROLLBACK
	}
	return rmq.COMMIT
}

func receive(consumer rmq.SimpleConsumer, done *sync.WaitGroup) {
	defer done.Done()
	for receiving.Load() {
		views, err := consumer.Receive(context.Background(), 32, 15*time.Second)
		if err != nil {
			failed(err) // an empty poll is an error, too
			time.Sleep(100 * time.Millisecond)
		}
		for _, view := range views {
			got(view)
			if err := consumer.Ack(context.Background(), view); err != nil {
				failed(err)
			}
		}
	}
}

func repeat(senders *sync.WaitGroup, turn func(int) error) {
	senders.Add(1)
	go func() {
		defer senders.Done()
		for number := 0; sending.Load(); number++ {
			if err := turn(number); err != nil {
				failed(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
}

func send(producer rmq.Producer, one *rmq.Message) error {
	if _, err := producer.Send(context.Background(), one); err != nil {
		return err
	}
	say("sent", one.Topic, string(one.Body))
	return nil
}

func message(topic, body string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(body)}
}

func got(view *rmq.MessageView) {
	body := string(view.GetBody())
	word := "got"
	if view.GetTopic() == "D" {
		due, err := strconv.ParseInt(body[strings.LastIndex(body, "-")+1:], 10, 64)
		must(err)
		if time.Now().UnixMilli() < due {
			word = "early"
		}
	}
	say(word, view.GetTopic(), body)
}

func say(word, topic, body string) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(word, topic, body)
}

func failed(err error) {
	fmt.Fprintln(os.Stderr, err)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
