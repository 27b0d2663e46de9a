package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os/exec"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	operationTimeout = 10 * time.Second
	privateKeys      = 6
	sharedKeys       = 8
)

// Client does operations at one replica, one after the other, and records them.
type Client struct {
	lab     *Lab
	replica *Replica
	name    string
	etcd    *clientv3.Client
	random  *rand.Rand
	count   int
	// What it saw last of each key, for its compare-and-swaps and reads of the past.
	seen map[string]int64
	last int64
}

// populate starts the clients of a replica, and its watch.
func (l *Lab) populate(r *Replica) error {
	watch, err := l.watch(r)
	if err != nil {
		return err
	}
	l.watches = append(l.watches, watch)
	kinds := []struct {
		name string
		turn func(*Client)
	}{
		{"private1", (*Client).private}, {"private2", (*Client).private}, {"shared1", (*Client).shared},
		{"shared2", (*Client).shared}, {"lease", (*Client).lease}, {"etcdctl", (*Client).program},
	}
	for place, kind := range kinds {
		if kind.name == "etcdctl" && l.etcdctl == "" {
			continue
		}
		etcd, err := l.connect(r)
		if err != nil {
			return err
		}
		client := &Client{
			lab: l, replica: r, name: kind.name, etcd: etcd, seen: map[string]int64{},
			random: rand.New(rand.NewSource(l.seed*1000 + int64(r.place*10+place))),
		}
		l.clients.Add(1)
		go func() {
			defer l.clients.Done()
			defer etcd.Close()
			for !l.stopping() && !r.isGone() {
				if !r.serves() {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				l.gate.RLock()
				if !r.isGone() {
					kind.turn(client)
				}
				l.gate.RUnlock()
				pace := l.pace
				if kind.name == "etcdctl" {
					pace *= 100
				}
				time.Sleep(time.Duration(client.random.Int63n(int64(2 * pace))))
			}
		}()
	}
	return nil
}

func (l *Lab) stopping() bool {
	select {
	case <-l.stop:
		return true
	default:
		return stopped()
	}
}

func (c *Client) value(key string) string {
	c.count++
	unique := fmt.Sprintf("r%d-%s-%d", c.replica.place, c.name, c.count)
	if !strings.HasPrefix(key, "/registry/") {
		return unique
	}
	// An object that replicas merge field by field.
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default","uid":%q},"data":{"f%d":%q,"last":%q}}`,
		key[strings.LastIndex(key, "/")+1:], key, c.random.Intn(5), unique, unique)
}

func (c *Client) private() {
	c.replica.mu.Lock()
	epoch := c.replica.epoch
	c.replica.mu.Unlock()
	c.act(fmt.Sprintf("private/%d/%d/%d", c.replica.place, epoch, c.random.Intn(privateKeys)))
}

func (c *Client) shared() {
	n := c.random.Intn(sharedKeys)
	if n%2 == 0 {
		c.act(fmt.Sprintf("shared/%d", n))
	} else {
		c.act(fmt.Sprintf("/registry/configmaps/default/%d", n))
	}
}

// act does one random operation on a key.
func (c *Client) act(key string) {
	op := Op{Key: key}
	switch dice := c.random.Intn(100); {
	case dice < 35:
		op.Kind, op.Value = Put, c.value(key)
	case dice < 55:
		op.Kind = Get
	case dice < 60:
		op.Kind = GetStale
	case dice < 65 && c.last > 0:
		// Not far back, and never before the own history of the replica.
		op.Kind, op.Compare = GetAt, c.last
	case dice < 75:
		op.Kind = Delete
	default:
		op.Kind, op.Value, op.Compare = Swap, c.value(key), c.seen[key]
	}
	c.do(op)
}

// do does and records an operation.
func (c *Client) do(op Op) Op {
	op.Replica, op.Client = c.replica.place, c.name
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	op.Call = now()
	err := c.ask(ctx, &op)
	op.Return = now()
	c.judge(&op, err)
	c.lab.history.add(op)
	return op
}

func (c *Client) judge(op *Op, err error) {
	if err == nil {
		if !op.aside() {
			c.last = op.Header
		}
		switch {
		case op.aside() || op.Kind == Grant || op.Kind == Revoke:
		case op.Kind == Put || op.Kind == Multi || op.Kind == Swap && op.Succeeded:
			c.seen[op.Key] = op.Header
		case op.Found != nil && op.Kind != GetAt:
			c.seen[op.Key] = op.Found.Mod
		case op.Kind != GetAt:
			c.seen[op.Key] = 0
		}
		return
	}
	op.Err = err.Error()
	op.Outcome = Unknown
	read := op.Kind == Get || op.Kind == GetStale || op.Kind == GetAt
	if read || strings.Contains(op.Err, "Error while dialing") || errors.Is(err, rpctypes.ErrCompacted) ||
		errors.Is(err, rpctypes.ErrFutureRev) || errors.Is(err, rpctypes.ErrTooManyRequests) || errors.Is(err, rpctypes.ErrLeaseNotFound) {
		op.Outcome = Failed
	}
}

func (c *Client) ask(ctx context.Context, op *Op) error {
	var options []clientv3.OpOption
	switch op.Kind {
	case GetStale:
		options = append(options, clientv3.WithSerializable())
	case GetAt:
		options = append(options, clientv3.WithRev(op.Compare))
	}
	switch op.Kind {
	case Put:
		if op.Lease != 0 {
			options = append(options, clientv3.WithLease(clientv3.LeaseID(op.Lease)))
		}
		answer, err := c.etcd.Put(ctx, op.Key, op.Value, options...)
		if err == nil {
			op.Header = answer.Header.Revision
		}
		return err
	case Delete:
		answer, err := c.etcd.Delete(ctx, op.Key)
		if err == nil {
			op.Header, op.Deleted = answer.Header.Revision, answer.Deleted
		}
		return err
	case Swap:
		answer, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(op.Key), "=", op.Compare)).
			Then(clientv3.OpPut(op.Key, op.Value)).Else(clientv3.OpGet(op.Key)).Commit()
		if err == nil {
			op.Header, op.Succeeded = answer.Header.Revision, answer.Succeeded
			if !op.Succeeded {
				op.Found = found(answer.Responses[0].GetResponseRange().Kvs)
			}
		}
		return err
	case Multi:
		answer, err := c.etcd.Txn(ctx).Then(clientv3.OpPut(op.Key, op.Value), clientv3.OpPut(op.Others[0], op.Value),
			clientv3.OpDelete(op.Others[1])).Commit()
		if err == nil {
			op.Header = answer.Header.Revision
		}
		return err
	case Grant:
		answer, err := c.etcd.Grant(ctx, longTTL)
		if err == nil {
			op.Header, op.Lease = answer.Revision, int64(answer.ID)
		}
		return err
	case Revoke:
		answer, err := c.etcd.Revoke(ctx, clientv3.LeaseID(op.Lease))
		if err == nil {
			op.Header = answer.Header.Revision
		}
		return err
	case Compact:
		_, err := c.etcd.Compact(ctx, op.Compare)
		return err
	case Defragment:
		_, err := c.etcd.Defragment(ctx, c.replica.ClientURL)
		return err
	}
	answer, err := c.etcd.Get(ctx, op.Key, options...)
	if err == nil {
		op.Header, op.Found = answer.Header.Revision, found(answer.Kvs)
	}
	return err
}

func found(kvs []*mvccpb.KeyValue) *KV {
	if len(kvs) == 0 {
		return nil
	}
	kv := told(kvs[0])
	return &kv
}

func told(kv *mvccpb.KeyValue) KV {
	return KV{string(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease}
}

// lease lives through one lease: grant, put with it, keep it alive, see the key, revoke, see the key gone.
func (c *Client) lease() {
	ctx, cancel := context.WithTimeout(context.Background(), operationTimeout)
	defer cancel()
	c.count++
	key := fmt.Sprintf("leased/%d/%d", c.replica.place, c.count)
	begin := now()
	step, err := func() (string, error) {
		// Long enough that none runs out in a pause.
		granted, err := c.etcd.Grant(ctx, 60)
		if err != nil {
			return "grant", err
		}
		if _, err := c.etcd.Put(ctx, key, "x", clientv3.WithLease(granted.ID)); err != nil {
			return "put", err
		}
		kept, err := c.etcd.KeepAliveOnce(ctx, granted.ID)
		if err != nil {
			return "keep alive", err
		}
		if kept.TTL != 60 {
			return "keep alive", fmt.Errorf("wrong: time to live is %d", kept.TTL)
		}
		answer, err := c.etcd.Get(ctx, key)
		if err != nil {
			return "get", err
		}
		if len(answer.Kvs) != 1 || answer.Kvs[0].Lease != int64(granted.ID) {
			return "get", fmt.Errorf("wrong: %s with lease %x shows %v", key, granted.ID, answer.Kvs)
		}
		if _, err := c.etcd.Revoke(ctx, granted.ID); err != nil {
			return "revoke", err
		}
		if answer, err = c.etcd.Get(ctx, key); err != nil {
			return "get", err
		}
		if len(answer.Kvs) != 0 {
			return "get", fmt.Errorf("wrong: %s is there after lease %x was revoked", key, granted.ID)
		}
		return "", nil
	}()
	op := Op{Replica: c.replica.place, Client: c.name, Kind: "lease", Key: key, Call: begin, Return: now()}
	if err != nil {
		op.Outcome, op.Err = Unknown, step+": "+err.Error()
	}
	c.lab.history.add(op)
}

// program does an operation with etcdctl.
func (c *Client) program() {
	op := Op{Replica: c.replica.place, Client: c.name, Key: fmt.Sprintf("private/%d/etcdctl", c.replica.place)}
	if c.random.Intn(2) == 0 {
		op.Key = fmt.Sprintf("shared/%d", c.random.Intn(sharedKeys)/2*2)
	}
	var args []string
	switch c.random.Intn(3) {
	case 0:
		op.Kind, args = Get, []string{"get", op.Key}
	case 1:
		op.Kind, args = Delete, []string{"del", op.Key}
	default:
		op.Kind, op.Value = Put, c.value(op.Key)
		args = []string{"put", op.Key, op.Value}
	}
	op.Call = now()
	out, err := c.lab.ctl(c.replica, args...)
	op.Return = now()
	var answer struct {
		Header struct {
			Revision int64 `json:"revision"`
		} `json:"header"`
		Deleted int64              `json:"deleted"`
		Kvs     []*mvccpb.KeyValue `json:"kvs"`
	}
	if err == nil {
		err = json.Unmarshal(out, &answer)
	}
	if err == nil {
		op.Header, op.Deleted, op.Found = answer.Header.Revision, answer.Deleted, found(answer.Kvs)
	}
	c.judge(&op, err)
	c.lab.history.add(op)
}

// ctl runs etcdctl at a replica and returns the JSON that it prints.
func (l *Lab) ctl(r *Replica, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.etcdctl, append([]string{"--endpoints=" + r.ClientURL, "--command-timeout=10s", "-w", "json"}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("etcdctl: %w: %.300s", err, said.String())
	}
	return out, nil
}
