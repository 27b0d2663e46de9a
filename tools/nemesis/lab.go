package main

import (
	"fmt"
	"math/rand"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Lab is the cluster under test and everything around it.
type Lab struct {
	binary, etcdctl string
	dir             string
	seed            int64
	flags           []string   // of each replica, beside those that name it
	random          *rand.Rand // of the nemesis; clients have their own
	network         Network
	report          *Report
	history         *History
	replicas        []*Replica
	watches         []*Watch
	pace            time.Duration
	// Clients hold it to read during an operation, whoever wants quiet holds it to write.
	gate    sync.RWMutex
	stop    chan struct{}
	clients sync.WaitGroup
	names   int
	// Intervals in which replicas were cut off from others, for the latencies.
	cutMu sync.Mutex
	cuts  map[int][][2]int64
	wiped bool
}

func (l *Lab) place(state string) (*Replica, error) {
	at, err := l.network.Add()
	if err != nil {
		return nil, err
	}
	place := len(l.replicas)
	name := fmt.Sprintf("r%d", place)
	replica := &Replica{Place: at, place: place, name: name, dir: filepath.Join(l.dir, name), binary: l.binary, flags: l.flags, state: state}
	l.replicas = append(l.replicas, replica)
	return replica, nil
}

// begin starts a static cluster.
func (l *Lab) begin(size int) error {
	list := ""
	for range size {
		replica, err := l.place("new")
		if err != nil {
			return err
		}
		list += fmt.Sprintf(",%s=%s", replica.name, replica.PeerURL)
	}
	for _, replica := range l.replicas {
		replica.list = list[1:]
		if err := replica.start(l.network); err != nil {
			return err
		}
	}
	for _, replica := range l.replicas {
		if err := replica.ready(); err != nil {
			return err
		}
	}
	return nil
}

// connect makes a client of one replica.
func (l *Lab) connect(r *Replica) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints:          []string{r.ClientURL},
		DialTimeout:        5 * time.Second,
		Logger:             zap.NewNop(),
		MaxCallRecvMsgSize: 1 << 30,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 300 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		})},
	})
}

// present are the replicas that are members.
func (l *Lab) present() []*Replica {
	var present []*Replica
	for _, replica := range l.replicas {
		if !replica.isGone() {
			present = append(present, replica)
		}
	}
	return present
}

// quietly does something while no client has an operation under way.
func (l *Lab) quietly(what func() error) error {
	l.gate.Lock()
	defer l.gate.Unlock()
	return what()
}

// end kills whatever still runs.
func (l *Lab) end() {
	for _, replica := range l.replicas {
		if replica.cmd != nil && replica.cmd.Process != nil {
			replica.markDown()
			replica.signal(syscall.SIGKILL)
			<-replica.ended
		}
	}
	l.network.Close()
}

func (l *Lab) noteCut(place int, from, to int64) {
	l.cutMu.Lock()
	defer l.cutMu.Unlock()
	l.cuts[place] = append(l.cuts[place], [2]int64{from, to})
}
