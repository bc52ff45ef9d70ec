/* The slot protocol of mambad: who may use a slot or a block, and when. `check.py` runs spin on this.

   Each rank has an engine thread, which decides, and a runner thread, which executes the steps that the
   engine launched, in order, at any later time. Clients submit and abort at any time. Of a state the model
   keeps whose it is and how many tokens it has consumed. A step that finds another state in a slot than it
   goes on from, or that touches a slot or block which is not its request's, fails an assertion.

   here                                 in engine/
   rank[k].free_slots, free_blocks      IdPool._free, as a set: bit i stands for id i
   rank[k].parked_slots[j], _blocks[j]  IdPool._quarantine: ids that wait for step[j] to complete
   rank[k].state                        StatePool: what each slot holds
   rank[k].table                        BlockTable: the host's rows, the blocks of a row as a set
   rank[k].step[j]                      Engine._in_flight and InputBuffers: launched steps, the oldest first
   rank[k].has_voted, outcome           Lockstep.agree: the collective that is the first act of every step
   rank[k].num_heard                    Lockstep._heard: the last call to work that the engine has taken in
   request[r].slot, blocks              CacheManager's Allocation
   request[r].key                       Request.key, as a place in the arrival order of the rank's live ones
   request[r].last_step                 Request.last_launched_step, as an index of step[]
   needs_dummy                          Engine.is_blocked, or no work: a dummy step is due
   admit, grow, settle, add, leave, finish, preempt, start, schedule, admit_waiting, make_room, launch,
   commit, agree                        the methods of these names

   A trail to a violation, replayed by spin, prints what the threads did.

   slot_holder and block_holder serve assertions only: who holds an id or, while it is parked, held it last.

   An engine works in atomic blocks between the points where another thread can see or change something. In
   each, the environment chooses first (`choose`); what follows from it is one `d_step`. From the commit to the
   vote it is one block: of a step that completes in between, only the next `settle` could tell the difference.
   Inlines are macros: `my` is the rank of the process that uses them, names with a final underscore are its
   scratch. */

#ifndef RANKS
#define RANKS 2         /* data-parallel, in lockstep; at most 2 */
#endif
#ifndef SLOTS
#define SLOTS 2         /* of a rank; also the rows of a padded step; at most 2 */
#endif
#ifndef BLOCKS
#define BLOCKS 3        /* of a rank; at most 6 */
#endif
#ifndef REQUESTS
#define REQUESTS 3      /* in all; at most 4 */
#endif
#ifndef TOKENS
#define TOKENS 3        /* most steps that work on a request: its prompt, then token by token; at most 3 */
#endif
#ifndef URGENT
#define URGENT 1        /* 1: some requests are more urgent than others, and preempt them */
#endif
#ifndef AGAIN
#define AGAIN 0         /* 1: a client whose request has ended may come again, for ever; for one rank */
#endif
#ifndef CALL_APART
#define CALL_APART 0    /* 1: a rank hears the call to work before, and apart from, the request itself */
#endif
#define BLOCK_SIZE 2    /* tokens */

#define BIT(i)          (1 << (i))
#define ALL_SLOTS       (BIT(SLOTS + 1) - 2)
#define ALL_BLOCKS      (BIT(BLOCKS + 1) - 2)
#define BLOCKS_FOR(n)   (((n) + BLOCK_SIZE - 1) / BLOCK_SIZE)

/* The state of request r after n tokens; 0 is nobody's. */
#define STATE(r, n)     ((r) * 4 + (n))
#define REQUEST_OF(s)   ((s) / 4)
#define TOKENS_OF(s)    ((s) % 4)

#define NEW 0           /* no engine has heard of it */
#define WAITING 1
#define PREEMPTED 2
#define RUNNING 3
#define FINISHED 4

#define LEAVE 1         /* what the collective says: leave lockstep, or do another step */
#define STAY 2

typedef Request {
    byte status;
    byte home;              /* the rank that it was submitted to */
    bool is_urgent;
    byte key;
    byte slot;              /* 0: none */
    byte blocks;
    byte num_launched;      /* tokens handed to launched steps */
    byte num_computed;      /* tokens of committed steps */
    bool last_step;
    bool is_yielding;
    byte swapped;           /* its state in host memory; 0: none there */
};

/* Row i goes on from the state `expected[i]` in slot `slot[i]`. A padding row expects 0. */
typedef Step {
    bool is_computing;      /* launched and not completed */
    byte expected[SLOTS];
    byte slot[SLOTS];
    byte blocks[SLOTS];     /* the slot's row of the block table, as it was at the launch */
};

typedef Rank {
    byte free_slots;
    byte free_blocks;
    byte parked_slots[2];
    byte parked_blocks[2];
    byte slot_holder[SLOTS + 1];
    byte block_holder[BLOCKS + 1];
    byte state[SLOTS + 1];
    byte table[SLOTS + 1];
    Step step[2];
    byte num_steps;         /* launched and not committed */
    byte num_heard;
    bool has_voted;
    bool has_work;
    byte outcome;           /* 0: not known yet */
    bool is_idle;           /* out of lockstep, waits for a call */
#if CALL_APART
    byte coming;            /* the request that was called for and has not come; 0: none */
#endif
};

Rank rank[RANKS];
Request request[REQUESTS + 1];
byte num_submitted;         /* requests that clients have sent so far: 1 to num_submitted */

#define my              rank[me]
#define IS_LIVE(r)      (request[r].status >= WAITING && request[r].status <= RUNNING)
#define IS_MINE(r)      (request[r].home == me && IS_LIVE(r))
#define RUNS_HERE(r)    (request[r].home == me && request[r].status == RUNNING)
#define IS_IN_FLIGHT(r) (request[r].num_computed < request[r].num_launched)
#define HAS_ROW(j, r)   (REQUEST_OF(my.step[j].expected[0]) == r || REQUEST_OF(my.step[j].expected[SLOTS - 1]) == r)

hidden byte bits_;
hidden byte first_;
hidden byte head_;
hidden byte id_;
hidden byte j_;
hidden byte last_;
hidden byte missing_;
hidden byte n_;
hidden byte num_rows_;
hidden byte ok_;
hidden byte place_;
hidden byte r_;
hidden byte row_;
hidden byte state_;
hidden byte who_;

/* ---- choices of the environment --------------------------------------------------------------------- */

#define MEMORY_FULL 0   /* bit r, from 1 on, is a choice for request r */
#define NOT_AHEAD 5
#define COPY_FAILS 6

byte may;               /* choices that would make a difference now */
byte chosen;            /* those of them that the environment made; both are 0 between blocks */

inline choose_one(i) {
    if
    :: true
    :: may & BIT(i) -> chosen = chosen | BIT(i)
    fi
}

inline choose() {
    if
    :: may == 0
    :: else ->
        choose_one(MEMORY_FULL);
        choose_one(1);
        choose_one(2);
        choose_one(3);
#if REQUESTS > 3
        choose_one(4);
#endif
        choose_one(NOT_AHEAD);
        choose_one(COPY_FAILS);
        may = 0
    fi
}

/* ---- ledgers ---------------------------------------------------------------------------------------- */

/* Sets bits_ to the `count` lowest ids of a set, or to 0 when there are fewer. */
inline lowest(set, num_ids, count) {
    bits_ = 0;
    n_ = 0;
    for (id_ : 1 .. num_ids) {
        if
        :: n_ < count && (set & BIT(id_)) -> bits_ = bits_ | BIT(id_); n_++
        :: else
        fi
    }
    bits_ = (n_ < count -> 0 : bits_)
}

/* Reserves a slot, and blocks for the tokens launched so far and one more: both or nothing. Sets ok_. */
inline admit(r) {
    lowest(my.free_slots, SLOTS, 1);
    ok_ = (bits_ != 0);
    if
    :: ok_ ->
        my.free_slots = my.free_slots & ~bits_;
        for (id_ : 1 .. SLOTS) {
            if
            :: bits_ == BIT(id_) -> request[r].slot = id_; my.slot_holder[id_] = r
            :: else
            fi
        }
        grow(r);
        if
        :: !ok_ -> put_back(BIT(request[r].slot), 0); request[r].slot = 0
        :: else
        fi
    :: else
    fi
}

/* Reserves the blocks that are missing for one more token, or none. Sets ok_. */
inline grow(r) {
    missing_ = BLOCKS_FOR(request[r].num_launched + 1);
    for (id_ : 1 .. BLOCKS) {
        missing_ = missing_ - ((request[r].blocks >> id_) & 1)
    }
    lowest(my.free_blocks, BLOCKS, missing_);
    ok_ = (missing_ == 0 || bits_ != 0);
    my.free_blocks = my.free_blocks & ~bits_;
    request[r].blocks = request[r].blocks | bits_;
    my.table[request[r].slot] = my.table[request[r].slot] | bits_;
    for (id_ : 1 .. BLOCKS) {
        my.block_holder[id_] = (bits_ & BIT(id_) -> r : my.block_holder[id_])
    }
}

/* Frees ids. What a free slot holds is nobody's state, whatever it is. */
inline put_back(slot_ids, block_ids) {
    for (id_ : 1 .. SLOTS) {
        if
        :: (slot_ids) & BIT(id_) -> my.slot_holder[id_] = 0; my.state[id_] = 0
        :: else
        fi
    }
    for (id_ : 1 .. BLOCKS) {
        my.block_holder[id_] = ((block_ids) & BIT(id_) -> 0 : my.block_holder[id_])
    }
    my.free_slots = my.free_slots | (slot_ids);
    my.free_blocks = my.free_blocks | (block_ids)
}

inline settle() {
    for (j_ : 0 .. 1) {
        if
        :: !my.step[j_].is_computing ->
            put_back(my.parked_slots[j_], my.parked_blocks[j_]);
            my.parked_slots[j_] = 0;
            my.parked_blocks[j_] = 0
        :: else
        fi
    }
}

/* Every id is free, parked or held by one request, and in one of these only. */
#define COUNT_IN(ids)   assert((bits_ & (ids)) == 0); bits_ = bits_ | (ids)

inline check_ledgers() {
    bits_ = my.free_slots;
    COUNT_IN(my.parked_slots[0]);
    COUNT_IN(my.parked_slots[1]);
    for (r_ : 1 .. REQUESTS) {
        state_ = (request[r_].home == me && request[r_].slot != 0 -> BIT(request[r_].slot) : 0);
        COUNT_IN(state_)
    }
    assert(bits_ == ALL_SLOTS);
    bits_ = my.free_blocks;
    COUNT_IN(my.parked_blocks[0]);
    COUNT_IN(my.parked_blocks[1]);
    for (r_ : 1 .. REQUESTS) {
        state_ = (request[r_].home == me -> request[r_].blocks : 0);
        COUNT_IN(state_)
    }
    assert(bits_ == ALL_BLOCKS)
}

/* ---- the life of a request -------------------------------------------------------------------------- */

inline add(r) {
    n_ = 1;
    for (r_ : 1 .. REQUESTS) {
        n_ = n_ + IS_MINE(r_)
    }
    request[r].key = n_;
    request[r].status = WAITING;
    printf("rank %d: request %d waits\n", me, r)
}

/* Gives back all that a running request holds: at once, or when the last launched step has completed. */
inline leave(r) {
    assert(request[r].slot != 0 && my.slot_holder[request[r].slot] == r);
    my.table[request[r].slot] = 0;
    j_ = request[r].last_step;
    if
    :: IS_IN_FLIGHT(r) && my.step[j_].is_computing ->
        my.parked_slots[j_] = my.parked_slots[j_] | BIT(request[r].slot);
        my.parked_blocks[j_] = my.parked_blocks[j_] | request[r].blocks;
        printf("rank %d: slot %d of request %d is in quarantine\n", me, request[r].slot, r)
    :: else ->
        put_back(BIT(request[r].slot), request[r].blocks);
        printf("rank %d: slot %d of request %d is free\n", me, request[r].slot, r)
    fi;
    request[r].slot = 0;
    request[r].blocks = 0;
    request[r].last_step = 0;
    request[r].is_yielding = 0
}

/* However a request ends, and wherever it stands. */
inline finish(r) {
    if
    :: request[r].status == RUNNING -> leave(r)
    :: else
    fi;
    for (r_ : 1 .. REQUESTS) {
        if
        :: IS_MINE(r_) && request[r_].key > request[r].key -> request[r_].key--
        :: else
        fi
    }
    printf("rank %d: request %d has ended\n", me, r);
    request[r].status = FINISHED;
    request[r].home = 0;
    request[r].is_urgent = 0;
    request[r].key = 0;
    request[r].num_launched = 0;
    request[r].num_computed = 0;
    request[r].swapped = 0
}

/* A copy to or from host memory happens at once, so no launched step may still use the slot or the blocks. */
inline check_unused(r) {
    for (j_ : 0 .. 1) {
        for (row_ : 0 .. SLOTS - 1) {
            assert(my.step[j_].slot[row_] != request[r].slot && !(my.step[j_].blocks[row_] & request[r].blocks))
        }
    }
}

/* Takes slot and blocks from a running request. If host memory is full, it will be computed again. */
inline preempt(r) {
    assert(!IS_IN_FLIGHT(r));
    if
    :: chosen & BIT(MEMORY_FULL) -> request[r].num_launched = 0; request[r].num_computed = 0
    :: else ->
        check_unused(r);
        assert(my.state[request[r].slot] == STATE(r, request[r].num_computed));
        request[r].swapped = my.state[request[r].slot]
    fi;
    leave(r);
    printf("rank %d: request %d is preempted after %d tokens\n", me, r, request[r].num_computed);
    request[r].status = PREEMPTED
}

/* Makes a waiting request run on what was reserved for it. Sets ok_: whether it does. If its state can't be
   copied back, it ends and holds nothing. */
inline start(r) {
    ok_ = !(request[r].swapped && (chosen & BIT(COPY_FAILS)));
    if
    :: !ok_ ->
        put_back(BIT(request[r].slot), request[r].blocks);
        my.table[request[r].slot] = 0;
        request[r].slot = 0;
        request[r].blocks = 0;
        finish(r)
    :: else ->
        if
        :: request[r].swapped ->
            check_unused(r);
            my.state[request[r].slot] = request[r].swapped;
            request[r].swapped = 0
        :: else
        fi;
        printf("rank %d: request %d gets slot %d, after %d tokens\n", me, r, request[r].slot, request[r].num_launched);
        request[r].status = RUNNING
    fi
}

/* ---- who is in the next step ------------------------------------------------------------------------ */

/* Running requests: the more urgent, then the older. Waiting ones: preempted before new, in between. */
#define ORDER(r)        (request[r].key + (request[r].is_urgent -> 0 : REQUESTS))
#define IS_NEW(r)       (request[r].status == WAITING)
#define PLACE(r)        (ORDER(r) + (request[r].is_urgent -> 0 : REQUESTS) + (IS_NEW(r) -> REQUESTS : 0))

/* Sets first_ and last_ of the running requests (0: none), head_ of the waiting ones (0: none), n_ to how
   many run, and ok_ to whether one of them is yielding. */
inline look() {
    first_ = 0;
    last_ = 0;
    head_ = 0;
    n_ = 0;
    ok_ = 0;
    for (r_ : 1 .. REQUESTS) {
        if
        :: RUNS_HERE(r_) ->
            n_++;
            ok_ = ok_ || request[r_].is_yielding;
            first_ = (!first_ || ORDER(r_) < ORDER(first_) -> r_ : first_);
            last_ = (!last_ || ORDER(r_) > ORDER(last_) -> r_ : last_)
        :: IS_MINE(r_) && !RUNS_HERE(r_) ->
            head_ = (!head_ || PLACE(r_) < PLACE(head_) -> r_ : head_)
        :: else
        fi
    }
}

inline preempt_yielding() {
    for (place_ : 1 .. REQUESTS) {
        if
        :: RUNS_HERE(place_) && request[place_].is_yielding && !IS_IN_FLIGHT(place_) -> preempt(place_)
        :: else
        fi
    }
}

inline yield_to_urgent() {
    look();
    if
    :: head_ && last_ && !ok_ && (n_ == SLOTS || !my.free_slots) &&
       request[head_].is_urgent && !request[last_].is_urgent ->
        request[last_].is_yielding = 1;
        preempt_yielding()
    :: else
    fi
}

/* The last in order gives up its blocks for r. Sets ok_: whether they are free already. */
inline make_room(r) {
    look();
    if
    :: ok_ || my.parked_blocks[0] || my.parked_blocks[1] || last_ == first_ -> ok_ = 0
    :: else ->
        request[last_].is_yielding = 1;
        ok_ = (last_ != r && !IS_IN_FLIGHT(last_));
        if
        :: ok_ -> preempt(last_)
        :: else
        fi
    fi
}

/* Puts the next token of r into the step, if that may be launched now and there is a block for it. */
inline schedule_running(r) {
    if
    :: request[r].num_launched < TOKENS && !(IS_IN_FLIGHT(r) && (chosen & BIT(r))) ->
        grow(r);
        if
        :: !ok_ ->
            make_room(r);
            if
            :: ok_ -> grow(r)
            :: else
            fi
        :: else
        fi;
        if
        :: ok_ ->
            my.step[my.num_steps].expected[num_rows_] = STATE(r, request[r].num_launched);
            my.step[my.num_steps].slot[num_rows_] = request[r].slot;
            request[r].num_launched++;
            request[r].last_step = my.num_steps;
            num_rows_++
        :: else
        fi
    :: else
    fi
}

inline admit_waiting() {
    do
    :: look();
        if
        :: head_ && n_ < SLOTS -> admit(head_)
        :: else -> break
        fi;
        if
        :: ok_ -> who_ = head_; start(who_)
        :: else -> break
        fi;
        if
        :: ok_ -> schedule_running(who_)
        :: else
        fi
    od
}

inline schedule() {
    settle();
    preempt_yielding();
    yield_to_urgent();
    num_rows_ = 0;
    for (place_ : 1 .. 2 * REQUESTS) {
        who_ = 0;
        for (r_ : 1 .. REQUESTS) {
            who_ = (RUNS_HERE(r_) && !request[r_].is_yielding && ORDER(r_) == place_ -> r_ : who_)
        }
        if
        :: who_ -> schedule_running(who_)
        :: else
        fi
    }
    admit_waiting()
}

/* ---- a step ----------------------------------------------------------------------------------------- */

/* Fills all elements of the padded size. A dummy step has padding rows only. */
inline launch() {
    assert(my.num_steps < 2);
    for (row_ : 0 .. SLOTS - 1) {
        if
        :: row_ >= num_rows_ ->
            my.step[my.num_steps].expected[row_] = 0;
            my.step[my.num_steps].slot[row_] = 0
        :: else
        fi;
        my.step[my.num_steps].blocks[row_] = my.table[my.step[my.num_steps].slot[row_]]
    }
    my.step[my.num_steps].is_computing = 1;
    my.num_steps++;
    printf("rank %d: a step of %d rows is launched\n", me, num_rows_)
}

/* On the runner's thread. A row reads its slot, unless it is the first of its request, and writes it. */
inline execute(j) {
    for (row_ : 0 .. SLOTS - 1) {
        id_ = my.step[j].slot[row_];
        state_ = my.step[j].expected[row_];
        bits_ = my.step[j].blocks[row_];
        who_ = REQUEST_OF(state_);
        if
        :: !who_ -> assert(id_ == 0 && bits_ == 0)
        :: else ->
            printf("rank %d executes request %d in slot %d: token %d\n", me, who_, id_, TOKENS_OF(state_) + 1);
            assert(my.slot_holder[id_] == who_);
            assert(my.state[id_] == state_ || TOKENS_OF(state_) == 0);
            my.state[id_] = state_ + 1;
            assert(bits_ != 0);
            for (id_ : 1 .. BLOCKS) {
                assert(!(bits_ & BIT(id_)) || my.block_holder[id_] == who_)
            }
        fi;
        my.step[j].slot[row_] = 0;
        my.step[j].blocks[row_] = 0
    }
    my.step[j].is_computing = 0
}

/* Takes in the oldest step. Rows of requests that have ended since are dropped. */
inline commit() {
    for (row_ : 0 .. SLOTS - 1) {
        state_ = my.step[0].expected[row_];
        who_ = REQUEST_OF(state_);
        if
        :: who_ && request[who_].status != FINISHED ->
            assert(request[who_].status == RUNNING && request[who_].num_computed == TOKENS_OF(state_));
            request[who_].num_computed++;
            if
            :: request[who_].num_computed == TOKENS || (chosen & BIT(who_)) -> finish(who_)
            :: else
            fi
        :: else
        fi
    }
    settle();
    forget_oldest_step();
    printf("rank %d: the oldest step is committed\n", me)
}

inline forget_oldest_step() {
    for (row_ : 0 .. SLOTS - 1) {
        my.step[0].expected[row_] = my.step[1].expected[row_];
        my.step[0].slot[row_] = my.step[1].slot[row_];
        my.step[0].blocks[row_] = my.step[1].blocks[row_];
        my.step[1].expected[row_] = 0;
        my.step[1].slot[row_] = 0;
        my.step[1].blocks[row_] = 0
    }
    my.step[0].is_computing = my.step[1].is_computing;
    my.step[1].is_computing = 0;
    my.parked_slots[0] = my.parked_slots[1];
    my.parked_blocks[0] = my.parked_blocks[1];
    my.parked_slots[1] = 0;
    my.parked_blocks[1] = 0;
    for (r_ : 1 .. REQUESTS) {
        request[r_].last_step = (RUNS_HERE(r_) -> 0 : request[r_].last_step)
    }
    my.num_steps--
}

/* ---- messages and lockstep -------------------------------------------------------------------------- */

/* Every submission is a call to all ranks. Its own rank gets the request with it, in one message. Each rank
   hears the calls in order, each at any time. The first to hear one settles, for the client, what it is. */
inline take_call() {
    my.num_heard++;
    if
    :: my.num_heard > num_submitted ->
        num_submitted++;
        if
        :: true
        :: RANKS > 1 && num_submitted > 1 -> request[num_submitted].home = 1
        fi;
        if
        :: true
        :: URGENT -> request[num_submitted].is_urgent = 1
        fi
    :: else
    fi;
    d_step {
        who_ = my.num_heard;
        if
        :: request[who_].status == NEW && request[who_].home == me ->
#if CALL_APART
            my.coming = who_
#else
            add(who_)
#endif
        :: else
        fi
    }
}

inline take_aborts() {
    for (place_ : 1 .. REQUESTS) {
        if
        :: !(chosen & BIT(place_))
        :: else ->
            if
            :: IS_LIVE(place_) -> finish(place_)
            :: else -> add(place_)
            fi
        fi
    }
}

/* The last rank to vote tells all. They leave when nobody has work and all have heard the same calls. */
inline agree() {
    my.has_voted = 1;
    my.has_work = (my.num_steps > 0);
    for (r_ : 1 .. REQUESTS) {
        my.has_work = my.has_work || IS_MINE(r_)
    }
    ok_ = 1;
    n_ = LEAVE;
    for (id_ : 0 .. RANKS - 1) {
        ok_ = ok_ && rank[id_].has_voted;
        n_ = (rank[id_].has_work || rank[id_].num_heard != my.num_heard -> STAY : n_)
    }
    if
    :: ok_ ->
        for (id_ : 0 .. RANKS - 1) {
            rank[id_].outcome = n_;
            rank[id_].has_voted = 0;
            rank[id_].has_work = 0
        };
        printf("all ranks agree: %d (1: leave lockstep, 2: a step)\n", n_)
    :: else
    fi
}

/* ---- what the environment may choose, block by block ------------------------------------------------ */

/* Each live request may be aborted; and with AGAIN who has ended may come again, once its rows are gone. */
inline may_abort() {
    for (r_ : 1 .. REQUESTS) {
        if
        :: IS_MINE(r_) -> may = may | BIT(r_)
#if AGAIN
        :: request[r_].status == FINISHED && !HAS_ROW(0, r_) && !HAS_ROW(1, r_) -> may = may | BIT(r_)
#endif
        :: else
        fi
    }
}

/* A request in flight may have to wait for its token (it has stop strings, or the step is full). Whoever is
   preempted may find host memory full; whoever comes back from there may not get its state. The step may be
   committed before the next is launched, or after. */
inline may_hold_back() {
    n_ = 0;
    for (r_ : 1 .. REQUESTS) {
        if
        :: IS_MINE(r_) ->
            n_++;
            may = may | BIT(NOT_AHEAD);
            may = may | (n_ > 1 || request[r_].is_yielding -> BIT(MEMORY_FULL) : 0);
            may = may | (request[r_].swapped -> BIT(COPY_FAILS) : 0);
            may = may | (IS_IN_FLIGHT(r_) && request[r_].num_launched < TOKENS -> BIT(r_) : 0)
        :: else
        fi
    }
}

/* Each row may end its request. */
inline may_end() {
    for (r_ : 1 .. REQUESTS) {
        may = may | (RUNS_HERE(r_) && HAS_ROW(0, r_) && request[r_].num_computed + 1 < TOKENS -> BIT(r_) : 0)
    }
}

/* ---- threads ---------------------------------------------------------------------------------------- */

proctype engine(byte me) {
    bool is_ahead;          /* the step just launched is left uncommitted */
    bool needs_dummy;

next_step:
    atomic {
        do
#if CALL_APART
        :: my.coming -> d_step { add(my.coming); my.coming = 0 }; my.is_idle = 0
        :: my.num_heard < REQUESTS && !my.coming -> take_call(); my.is_idle = 0
#else
        :: my.num_heard < REQUESTS -> take_call(); my.is_idle = 0
#endif
        :: !my.is_idle -> break
        od;
        assert(!may && !chosen);
        d_step { may_abort() };
        choose();
        d_step { take_aborts(); check_ledgers(); agree(); chosen = 0 }
    };
    atomic {
        my.outcome != 0;
        if
        :: my.outcome == LEAVE -> my.outcome = 0; goto idle
        :: else -> my.outcome = 0
        fi;
        d_step { may_hold_back() };
        choose();
        d_step {
            schedule();
            if
            :: num_rows_ > 0 -> launch(); is_ahead = !(chosen & BIT(NOT_AHEAD))
            :: else -> needs_dummy = (RANKS > 1)
            fi;
            check_ledgers();
            chosen = 0
        }
    };
complete:
    atomic {
        if
        :: my.num_steps <= is_ahead && needs_dummy ->
            d_step { needs_dummy = 0; num_rows_ = 0; launch() };
            goto complete
        :: my.num_steps <= is_ahead && !needs_dummy -> is_ahead = 0; goto next_step
        :: my.num_steps > is_ahead && !my.step[0].is_computing
        fi;
        d_step { may_end() };
        choose();
        d_step { commit(); check_ledgers(); chosen = 0 };
        goto complete
    };
idle:
    atomic {
        assert(my.free_slots == ALL_SLOTS && my.free_blocks == ALL_BLOCKS);
        my.is_idle = 1
    };
end_idle:
    atomic {
#if AGAIN
        my.is_idle = 0;
#elif CALL_APART
        my.num_heard < REQUESTS || my.coming;
#else
        my.num_heard < REQUESTS;
#endif
        goto next_step
    }
}

proctype runner(byte me) {
end_without_steps:
    do
    :: d_step { my.step[0].is_computing -> execute(0) }
    :: d_step { !my.step[0].is_computing && my.step[1].is_computing -> execute(1) }
    od
}

init {
    byte k;
    atomic {
        for (k : 0 .. RANKS - 1) {
            rank[k].free_slots = ALL_SLOTS;
            rank[k].free_blocks = ALL_BLOCKS;
            run engine(k);
            run runner(k)
        }
        k = 0
    }
}

/* ---- liveness, under weak fairness of the threads --------------------------------------------------- */

/* Any of up to 4 requests, some of them looked at twice. */
#define ANYBODY         (IS_LIVE(1) || IS_LIVE((REQUESTS + 1) / 2) || IS_LIVE(REQUESTS / 2 + 1) || IS_LIVE(REQUESTS))
#define HAVE_HEARD_ALL   (rank[0].num_heard == REQUESTS && rank[RANKS - 1].num_heard == REQUESTS)
#define ALL_IDLE        (rank[0].is_idle && rank[RANKS - 1].is_idle)

/* All requests end, and then lockstep does; an idle rank holds nothing. */
ltl everybody_ends { [] <> (!ANYBODY && (HAVE_HEARD_ALL -> ALL_IDLE)) }

/* With AGAIN: whoever waits or runs comes to an end, though others come again and again. */
ltl nobody_starves { [] (IS_LIVE(1) -> <> !IS_LIVE(1)) }
