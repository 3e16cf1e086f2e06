// franz-go against a server: `write`, `read` what was written (hot, half, cold), `group`, `transactions`, `committed` of what those
// wrote, `compacted`, `admin`. Its settings are its defaults, but for sizes.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const startMs = 1_700_000_000_000

var (
	address  string
	ctx, end = context.WithTimeout(context.Background(), 4*time.Minute)
	codecs   = map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
)

func main() {
	defer end()
	address = os.Args[1]
	switch what := os.Args[2]; what {
	case "write":
		write(os.Args[3])
	case "read":
		read(os.Args[3], os.Args[4])
	case "group":
		group()
	case "transactions":
		transactions()
	case "committed":
		committed(os.Args[3])
	case "compacted":
		compacted(os.Args[3])
	case "admin":
		admin()
	default:
		panic(what)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(found, expected any, what string) {
	if found := fmt.Sprint(found); found != fmt.Sprint(expected) {
		panic(fmt.Sprintf("%s: found %s, expected %v", what, found, expected))
	}
	fmt.Println("ok:", what)
}

func client(options ...kgo.Opt) *kgo.Client {
	options = append([]kgo.Opt{
		kgo.SeedBrokers(address), kgo.ProducerBatchMaxBytes(16 << 20), kgo.FetchMaxPartitionBytes(16 << 20), kgo.FetchMaxBytes(32 << 20),
	}, options...)
	user, password := os.Getenv("SASL_USER"), os.Getenv("SASL_PASSWORD")
	switch os.Getenv("SASL_MECHANISM") {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	}
	client, err := kgo.NewClient(options...)
	must(err)
	return client
}

func topicOf(codec string) string { return "go-" + codec }

// The special cases first, then plain ones. The second half is like the first.
func records(codec string) []*kgo.Record {
	large := bytes.Repeat([]byte("x"), 8<<20)
	headers := []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}, {Key: "n", Value: nil}}
	var all []*kgo.Record
	for half := 0; half < 2; half++ {
		all = append(all,
			&kgo.Record{Key: []byte("k"), Value: []byte("v")},
			&kgo.Record{Key: nil, Value: []byte("v")},
			&kgo.Record{Key: []byte("k"), Value: nil},
			&kgo.Record{Key: []byte{}, Value: []byte{}},
			&kgo.Record{Key: nil, Value: []byte{0}, Headers: headers},
			&kgo.Record{Key: []byte("k"), Value: large})
		for n := 0; n < 250; n++ {
			all = append(all, &kgo.Record{Key: []byte(fmt.Sprint(n)), Value: []byte(fmt.Sprint("value ", n))})
		}
	}
	for at, record := range all {
		record.Topic = topicOf(codec)
		record.Timestamp = time.UnixMilli(startMs + int64(at)*1000)
	}
	return all
}

// Writes the first half of each codec's records, or the second.
func write(half string) {
	for codec, compression := range codecs {
		all := records(codec)
		middle := len(all) / 2
		part := all[:middle]
		if half == "second" {
			part = all[middle:]
		}
		producer := client(kgo.ProducerBatchCompression(compression), kgo.AllowAutoTopicCreation())
		must(producer.ProduceSync(ctx, part...).FirstErr())
		producer.Close()
	}
	fmt.Println("ok: written:", half)
}

func consumed(topic string, from kgo.Offset, count int, options ...kgo.Opt) []*kgo.Record {
	partition := map[string]map[int32]kgo.Offset{topic: {0: from}}
	consumer := client(append(options, kgo.ConsumePartitions(partition))...)
	defer consumer.Close()
	var all []*kgo.Record
	for len(all) < count {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err())
		all = append(all, fetches.Records()...)
	}
	return all
}

func shown(record *kgo.Record) string {
	text := func(bytes []byte) string {
		if bytes == nil {
			return "null"
		}
		return fmt.Sprintf("%q", bytes)
	}
	return fmt.Sprint(text(record.Key), text(record.Value), record.Headers, record.Timestamp.UnixMilli())
}

// Compares what is there with what was written, from several places.
func read(codec, where string) {
	written := records(codec)
	if where == "hot" {
		// The second half is not there yet.
		written = written[:len(written)/2]
	}
	for _, from := range []int{0, 3, len(written) / 2, len(written) - 1} {
		for at, record := range consumed(topicOf(codec), kgo.NewOffset().At(int64(from)), len(written)-from) {
			if int(record.Offset) != from+at || shown(record) != shown(written[from+at]) {
				panic(fmt.Sprintf("%s %s: offset %d, expected %d: %.200s", codec, where, record.Offset, from+at, shown(record)))
			}
		}
	}
	middle := len(written) / 2
	millis := written[middle].Timestamp.UnixMilli()
	found := consumed(topicOf(codec), kgo.NewOffset().AfterMilli(millis), len(written)-middle)
	expect(found[0].Offset, middle, codec+" "+where+": all are the same, and a time is found")
}

// Two members share a topic of four partitions; each record is handled once, also after one has left.
func group() {
	admin := kadm.NewClient(client())
	_, err := admin.CreateTopic(ctx, 4, 1, nil, "go-shared")
	must(err)
	producer := client()
	send := func(from, to int) {
		for n := from; n < to; n++ {
			record := &kgo.Record{Topic: "go-shared", Key: []byte(fmt.Sprint(n)), Value: []byte(fmt.Sprint(n))}
			producer.Produce(ctx, record, func(_ *kgo.Record, err error) { must(err) })
		}
		must(producer.Flush(ctx))
	}
	member := func() *kgo.Client {
		return client(kgo.ConsumerGroup("go-group"), kgo.ConsumeTopics("go-shared"), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	}
	seen := map[string]int{}
	poll := func(member *kgo.Client) int {
		briefly, stop := context.WithTimeout(ctx, 200*time.Millisecond)
		defer stop()
		fetches := member.PollFetches(briefly)
		for _, fault := range fetches.Errors() {
			if !errors.Is(fault.Err, context.DeadlineExceeded) {
				panic(fault.Err)
			}
		}
		fetches.EachRecord(func(record *kgo.Record) { seen[string(record.Value)]++ })
		must(member.CommitUncommittedOffsets(ctx))
		return fetches.NumRecords()
	}
	first, second := member(), member()
	counts := [2]int{}
	both := func() {
		counts[0] += poll(first)
		counts[1] += poll(second)
	}
	// Both have some before the second leaves, and all that was sent is seen.
	sent := 0
	for counts[0] == 0 || counts[1] == 0 {
		send(sent, sent+400)
		sent += 400
		both()
	}
	for len(seen) < sent {
		both()
	}
	second.Close()
	before := len(seen)
	send(1_000_000, 1_000_400)
	for len(seen) < before+400 {
		poll(first)
	}
	most := 0
	for _, times := range seen {
		most = max(most, times)
	}
	expect(most, 1, "a group's members share a topic, and no record is handled twice")
	lags, err := admin.Lag(ctx, "go-group")
	must(err)
	expect(lags["go-group"].Lag.Total(), 0, "its lag is none")
	first.Close()
	_, err = admin.DeleteGroup(ctx, "go-group")
	must(err)
}

// Every second transaction is aborted.
func transactions() {
	producer := client(kgo.TransactionalID("go-txn"), kgo.DefaultProduceTopic("go-txn-out"), kgo.AllowAutoTopicCreation())
	for round := 0; round < 6; round++ {
		must(producer.BeginTransaction())
		for n := 0; n < 50; n++ {
			value := fmt.Sprint(round, " ", n)
			must(producer.ProduceSync(ctx, &kgo.Record{Key: []byte("k"), Value: []byte(value)}).FirstErr())
		}
		must(producer.EndTransaction(ctx, kgo.TransactionEndTry(round%2 == 0)))
	}
	fmt.Println("ok: three transactions of six are committed")
	// A second one of the same id fences the first.
	other := client(kgo.TransactionalID("go-txn"), kgo.DefaultProduceTopic("go-txn-out"))
	must(other.BeginTransaction())
	must(producer.BeginTransaction())
	must(other.ProduceSync(ctx, &kgo.Record{Value: []byte("void")}).FirstErr())
	err := producer.ProduceSync(ctx, &kgo.Record{Value: []byte("fenced")}).FirstErr()
	expect(errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.ProducerFenced), true, "the one before is fenced")
	must(other.EndTransaction(ctx, kgo.TryAbort))
	other.Close()
}

func committed(where string) {
	found := consumed("go-txn-out", kgo.NewOffset().AtStart(), 150, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	for at, record := range found {
		expected := fmt.Sprint(at/50*2, " ", at%50)
		if string(record.Value) != expected {
			panic(fmt.Sprintf("%s at %d: found %s, expected %s", where, at, record.Value, expected))
		}
	}
	expect(len(found), 150, "what is committed is read and nothing else, "+where)
}

// Of a compacted topic the latest of each key is there, `written` before or after it was `cooled`.
func compacted(when string) {
	const topic = "go-compacted"
	if when == "written" {
		policy := "compact"
		_, err := kadm.NewClient(client()).CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": &policy}, topic)
		must(err)
		producer := client(kgo.DefaultProduceTopic(topic))
		err = producer.ProduceSync(ctx, &kgo.Record{Value: []byte("keyless")}).FirstErr()
		expect(errors.Is(err, kerr.InvalidRecord), true, "a record without a key is refused")
		for n := 0; n < 1000; n++ {
			record := &kgo.Record{Key: []byte(fmt.Sprint(n % 10)), Value: []byte(fmt.Sprint(n))}
			if n == 999 {
				record.Value = nil
			}
			producer.Produce(ctx, record, func(_ *kgo.Record, err error) { must(err) })
		}
		must(producer.Flush(ctx))
	}
	latest, count := map[string]string{}, 0
	consumer := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	for last := int64(-1); last < 999; {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if record.Offset <= last {
				panic("out of order")
			}
			last = record.Offset
			latest[string(record.Key)] = string(record.Value)
			count++
		})
	}
	expect(latest, "map[0:990 1:991 2:992 3:993 4:994 5:995 6:996 7:997 8:998 9:]", "each key's latest value, "+when)
	if when == "cooled" {
		expect(count, 10, "and no other")
	}
}

func admin() {
	admin := kadm.NewClient(client())
	hour := "3600000"
	_, err := admin.CreateTopic(ctx, 3, 1, map[string]*string{"retention.ms": &hour}, "go-made")
	must(err)
	topics, err := admin.ListTopics(ctx, "go-made")
	must(err)
	expect(len(topics["go-made"].Partitions), 3, "partitions of a topic it made")
	megabyte := "1000000"
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.bytes", Value: &megabyte}}, "go-made")
	must(err)
	must(altered[0].Err)
	described, err := admin.DescribeTopicConfigs(ctx, "go-made")
	must(err)
	settings := map[string]string{}
	for _, config := range described[0].Configs {
		settings[config.Key] = config.MaybeValue()
	}
	expect(settings["retention.ms"]+" "+settings["retention.bytes"], "3600000 1000000", "settings it gave and changed")
	metadata, err := admin.BrokerMetadata(ctx)
	must(err)
	expect(len(metadata.Brokers), 1, "one broker")
	_, err = admin.DeleteTopics(ctx, "go-made")
	must(err)
	topics, err = admin.ListTopics(ctx)
	must(err)
	var left []string
	for name := range topics {
		if strings.HasPrefix(name, "go-made") {
			left = append(left, name)
		}
	}
	expect(len(left), 0, "its topic is gone")
}
