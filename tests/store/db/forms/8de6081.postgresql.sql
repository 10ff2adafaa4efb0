CREATE TABLE public.schedd_attempts (
    task_id bigint NOT NULL,
    claim bigint NOT NULL,
    number integer NOT NULL,
    worker bigint NOT NULL,
    claimed_at bigint,
    started_at bigint,
    finished_at bigint NOT NULL,
    outcome smallint NOT NULL,
    error text,
    error_class text,
    fingerprint text,
    status_code integer,
    envelope text
);
CREATE TABLE public.schedd_audit (
    id bigint NOT NULL,
    task_id bigint NOT NULL,
    at bigint NOT NULL,
    actor text,
    action text NOT NULL,
    detail text
);
CREATE SEQUENCE public.schedd_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.schedd_audit_id_seq OWNED BY public.schedd_audit.id;
CREATE TABLE public.schedd_checkpoints (
    task_id bigint NOT NULL,
    name text NOT NULL,
    sort smallint NOT NULL,
    seq integer NOT NULL,
    claim bigint NOT NULL,
    value text,
    failure text,
    started_at bigint,
    at bigint NOT NULL,
    note text
);
CREATE TABLE public.schedd_edges (
    parent bigint NOT NULL,
    child bigint NOT NULL,
    on_end smallint NOT NULL,
    otherwise smallint NOT NULL,
    ok smallint NOT NULL
);
CREATE TABLE public.schedd_events (
    name text NOT NULL,
    payload text,
    emitted_at bigint NOT NULL,
    emitted_by bigint
);
CREATE TABLE public.schedd_kinds (
    name text NOT NULL,
    schema text NOT NULL,
    options text NOT NULL,
    schema_version integer NOT NULL,
    updated_at bigint NOT NULL
);
CREATE TABLE public.schedd_outcomes (
    task_id bigint NOT NULL,
    state smallint NOT NULL,
    removed_at bigint NOT NULL
);
CREATE TABLE public.schedd_schedules (
    name text NOT NULL,
    kind text NOT NULL,
    payload text NOT NULL,
    options text NOT NULL,
    recurrence text NOT NULL,
    catchup text NOT NULL,
    overlap text NOT NULL,
    anchor bigint NOT NULL,
    next_at bigint NOT NULL,
    paused smallint DEFAULT 0 NOT NULL,
    last_slot bigint,
    last_task bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    seen_at bigint NOT NULL
);
CREATE TABLE public.schedd_starts (
    kind text NOT NULL,
    until bigint NOT NULL,
    starts integer NOT NULL
);
CREATE TABLE public.schedd_task_values (
    task_id bigint NOT NULL,
    name text NOT NULL,
    value text NOT NULL
);
CREATE TABLE public.schedd_tasks (
    id bigint NOT NULL,
    state smallint NOT NULL,
    queue text NOT NULL,
    lane text NOT NULL,
    pool smallint NOT NULL,
    run_at bigint NOT NULL,
    kind text NOT NULL,
    unmet integer DEFAULT 0 NOT NULL,
    worker bigint,
    claim bigint DEFAULT 0 NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    attempt_base integer DEFAULT 0 NOT NULL,
    max_attempts integer,
    retry text,
    timeout bigint,
    dead_letter smallint DEFAULT 1 NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    started_at bigint,
    finished_at bigint,
    payload text,
    extras smallint DEFAULT 0 NOT NULL,
    payload_ref text,
    schema_version integer DEFAULT 1 NOT NULL,
    message_type text,
    correlation text,
    causation text,
    subject text,
    sequence bigint,
    headers text,
    key text,
    held_key text,
    key_retention bigint,
    key_until bigint,
    schedule text,
    slot bigint,
    missed integer,
    missed_since bigint,
    cancel_requested bigint,
    cancel_cascade smallint DEFAULT 0 NOT NULL,
    rerun smallint DEFAULT 0 NOT NULL,
    progress double precision,
    progress_message text,
    last_heartbeat_at bigint,
    suspect smallint DEFAULT 0 NOT NULL,
    deaths smallint DEFAULT 0 NOT NULL,
    result text,
    result_ttl bigint,
    result_until bigint,
    kept_until bigint,
    error text,
    error_class text,
    fingerprint text,
    status_code integer,
    ended_by bigint,
    original_id bigint,
    replay_count integer DEFAULT 0 NOT NULL,
    spawned_by bigint,
    max_duration bigint,
    max_delay bigint,
    expires_at bigint,
    check_at bigint
)
WITH (fillfactor='70');
CREATE SEQUENCE public.schedd_tasks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.schedd_tasks_id_seq OWNED BY public.schedd_tasks.id;
CREATE TABLE public.schedd_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.schedd_waits (
    task_id bigint NOT NULL,
    name text NOT NULL,
    item bigint NOT NULL,
    event text,
    until bigint NOT NULL,
    claim bigint NOT NULL,
    at bigint NOT NULL,
    met smallint DEFAULT 0 NOT NULL
);
CREATE TABLE public.schedd_worker_kinds (
    worker bigint NOT NULL,
    kind text NOT NULL,
    schema_version integer NOT NULL
);
CREATE TABLE public.schedd_workers (
    id bigint NOT NULL,
    incarnation text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    state smallint NOT NULL,
    queues text NOT NULL,
    pools text NOT NULL,
    started_at bigint NOT NULL,
    heartbeat_at bigint NOT NULL,
    lease_until bigint NOT NULL,
    drain_requested bigint,
    skew bigint DEFAULT 0 NOT NULL
);
CREATE SEQUENCE public.schedd_workers_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.schedd_workers_id_seq OWNED BY public.schedd_workers.id;
ALTER TABLE ONLY public.schedd_audit ALTER COLUMN id SET DEFAULT nextval('public.schedd_audit_id_seq'::regclass);
ALTER TABLE ONLY public.schedd_tasks ALTER COLUMN id SET DEFAULT nextval('public.schedd_tasks_id_seq'::regclass);
ALTER TABLE ONLY public.schedd_workers ALTER COLUMN id SET DEFAULT nextval('public.schedd_workers_id_seq'::regclass);
INSERT INTO public.schedd_attempts VALUES (1, 1, 1, 1, 1795700455406991, 1795700455434434, 1795700455434490, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_attempts VALUES (2, 1, 1, 1, 1795700455525650, 1795700455534462, 1795700455536313, 3, 'ValueError: never', 'ValueError', '7212e562fc49', NULL, NULL);
INSERT INTO public.schedd_attempts VALUES (3, 1, 1, 1, 1795700455540123, 1795700455595115, 1795700455596193, 2, 'ValueError: not yet', 'ValueError', '4df245d3cb89', NULL, NULL);
INSERT INTO public.schedd_attempts VALUES (4, 1, 1, 1, 1795700455608332, 1795700455662096, 1795700455744051, 3, 'AttributeError: ''Context'' object has no attribute ''sleep''', 'AttributeError', 'c954650da6b8', NULL, NULL);
INSERT INTO public.schedd_attempts VALUES (2, 2, 2, 1, 1795700455814966, 1795700455826709, 1795700455827536, 3, 'ValueError: never', 'ValueError', '7212e562fc49', NULL, NULL);
INSERT INTO public.schedd_audit VALUES (1, 2, 1795700455733347, NULL, 'replay', '{"attempt":1,"error":"ValueError: never"}');
INSERT INTO public.schedd_checkpoints VALUES (4, 'first', 0, 1, 1, '7', NULL, 1795700455662218, 1795700455694536, NULL);
INSERT INTO public.schedd_edges VALUES (5, 6, 0, 0, 1);
INSERT INTO public.schedd_edges VALUES (2, 7, 2, 0, 15);
INSERT INTO public.schedd_edges VALUES (5, 7, 2, 0, 15);
INSERT INTO public.schedd_kinds VALUES ('bad', '{"$ref":"#/$defs/bad","$defs":{"bad":{"title":"bad","type":"object","properties":{},"required":[],"additionalProperties":false}}}', '{"runs":"bad","sort":"thread","queue":"default","pool":1,"retry":null,"timeout":null,"max_concurrency":null,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}', 1, 1795700455294382);
INSERT INTO public.schedd_kinds VALUES ('durable', '{"$ref":"#/$defs/durable","$defs":{"durable":{"title":"durable","type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}}}', '{"runs":"durable","sort":"thread","queue":"default","pool":1,"retry":null,"timeout":null,"max_concurrency":5,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}', 1, 1795700455294382);
INSERT INTO public.schedd_kinds VALUES ('flaky', '{"$ref":"#/$defs/flaky","$defs":{"flaky":{"title":"flaky","type":"object","properties":{},"required":[],"additionalProperties":false}}}', '{"runs":"flaky","sort":"thread","queue":"default","pool":1,"retry":"{\"min_wait\":3600.0,\"max_wait\":7200.0,\"max_attempts\":3,\"factor\":2.0,\"jitter\":0.1,\"strategy\":\"exponential\",\"retry_on\":[]}","timeout":null,"max_concurrency":null,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}', 1, 1795700455294382);
INSERT INTO public.schedd_kinds VALUES ('quick', '{"$ref":"#/$defs/quick","$defs":{"quick":{"title":"quick","type":"object","properties":{"n":{"type":"integer","default":0}},"required":[],"additionalProperties":false}}}', '{"runs":"quick","sort":"thread","queue":"default","pool":1,"retry":null,"timeout":null,"max_concurrency":null,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}', 1, 1795700455294382);
INSERT INTO public.schedd_kinds VALUES ('slow', '{"$ref":"#/$defs/slow","$defs":{"slow":{"title":"slow","type":"object","properties":{"n":{"type":"integer","default":0}},"required":[],"additionalProperties":false}}}', '{"runs":"slow","sort":"thread","queue":"default","pool":1,"retry":null,"timeout":null,"max_concurrency":null,"rate_limit":null,"dead_letter":true,"result_ttl":null,"stall_after":null,"on_stall":"report","concurrency_key":false,"concurrency_key_why":null}', 1, 1795700455294382);
INSERT INTO public.schedd_schedules VALUES ('every', 'quick', '{"n":100}', '{"kind":"quick","payload":"","lane":"quick","queue":"default","pool":1,"run_at":0,"delay":0,"max_attempts":1,"retry":null,"timeout":null,"dead_letter":true,"payload_ref":null,"schema_version":1,"message_type":null,"correlation":null,"causation":null,"subject":null,"sequence":null,"headers":null,"key":null,"conflict":"keep","key_retention":null,"schedule":null,"slot":null,"missed":null,"missed_since":null,"result_ttl":null,"max_duration":null,"max_delay":null,"edges":[]}', '{"kind":"interval","interval_us":3600000000,"mode":"fixed_rate"}', 'skip', 'allow', 1795700455698719, 1795704055698719, 0, NULL, NULL, 1795700455698719, 1795700455698719, 1795700455698719);
INSERT INTO public.schedd_task_values VALUES (2, 'log:1', 'Traceback (most recent call last):
  File "/tmp/st/old/8de6081/scheduler/model/registry.py", line 340, in run
    return function(ctx, *msgspec.structs.astuple(value))
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/st/make_old.py", line 19, in bad
    def bad(ctx: Context) -> None: raise ValueError("never")
                                   ^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: never
');
INSERT INTO public.schedd_task_values VALUES (3, 'log:1', 'Traceback (most recent call last):
  File "/tmp/st/old/8de6081/scheduler/model/registry.py", line 340, in run
    return function(ctx, *msgspec.structs.astuple(value))
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/st/make_old.py", line 16, in flaky
    def flaky(ctx: Context) -> None: raise ValueError("not yet")
                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: not yet
');
INSERT INTO public.schedd_task_values VALUES (4, 'log:1', 'Traceback (most recent call last):
  File "/tmp/st/old/8de6081/scheduler/model/registry.py", line 340, in run
    return function(ctx, *msgspec.structs.astuple(value))
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/st/make_old.py", line 24, in durable
    ctx.sleep("nap", 3600)
    ^^^^^^^^^
AttributeError: ''Context'' object has no attribute ''sleep''
');
INSERT INTO public.schedd_task_values VALUES (2, 'log:2', 'Traceback (most recent call last):
  File "/tmp/st/old/8de6081/scheduler/model/registry.py", line 340, in run
    return function(ctx, *msgspec.structs.astuple(value))
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/st/make_old.py", line 19, in bad
    def bad(ctx: Context) -> None: raise ValueError("never")
                                   ^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: never
');
INSERT INTO public.schedd_tasks VALUES (1, 6, 'default', 'quick', 1, 1795700455224810, 'quick', 0, NULL, 1, 1, 0, 1, NULL, NULL, 1, 1795700455224810, 1795700455406991, 1795700455434434, 1795700455434490, '{"n":1}', 0, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, 'first', 'first', NULL, 1795786855462635, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, '2', NULL, 1795786855462635, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_tasks VALUES (6, 0, 'default', 'quick', 1, 1795700455551064, 'quick', 1, NULL, 0, 0, 0, 1, NULL, NULL, 1, 1795700455551064, NULL, NULL, NULL, '{"n":9}', 0, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_tasks VALUES (3, 2, 'default', 'flaky', 1, 1795704081443936, 'flaky', 0, NULL, 1, 1, 0, 3, '{"min_wait":3600.0,"max_wait":7200.0,"max_attempts":3,"factor":2.0,"jitter":0.1,"strategy":"exponential","retry_on":[]}', NULL, 1, 1795700455525216, 1795700455540123, 1795700455595115, 1795700455596193, '{}', 0, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, 'f', 'f', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, 'ValueError: not yet', 'ValueError', '4df245d3cb89', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_tasks VALUES (8, 1, 'default', 'quick', 1, 1795704055648856, 'quick', 0, NULL, 0, 0, 0, 1, NULL, NULL, 1, 1795700455648856, NULL, NULL, NULL, '{"n":2}', 0, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, 'later', 'later', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_tasks VALUES (5, 5, 'default', 'slow', 1, 1795700455547710, 'slow', 0, 1, 1, 1, 0, 1, NULL, NULL, 1, 1795700455547710, 1795700455608332, 1795700455694260, NULL, '{"n":5}', 0, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_tasks VALUES (4, 8, 'default', 'durable', 1, 1795700455543752, 'durable', 0, NULL, 1, 1, 0, 1, NULL, NULL, 1, 1795700455543752, 1795700455608332, 1795700455662096, 1795700455744051, '{"n":3}', 0, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, 1795700455694536, 0, 0, NULL, NULL, NULL, NULL, 'AttributeError: ''Context'' object has no attribute ''sleep''', 'AttributeError', 'c954650da6b8', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_tasks VALUES (2, 8, 'default', 'bad', 1, 1795700455733347, 'bad', 0, NULL, 2, 2, 1, 1, NULL, NULL, 1, 1795700455522441, 1795700455814966, 1795700455826709, 1795700455827536, '{}', 0, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, 'ValueError: never', 'ValueError', '7212e562fc49', NULL, NULL, 2, 1, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_tasks VALUES (7, 0, 'default', 'quick', 1, 1795700455586424, 'quick', 1, NULL, 0, 0, 0, 1, NULL, NULL, 1, 1795700455586424, NULL, NULL, NULL, '{"n":8}', 0, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.schedd_version VALUES ('0001');
INSERT INTO public.schedd_worker_kinds VALUES (1, 'bad', 1);
INSERT INTO public.schedd_worker_kinds VALUES (1, 'durable', 1);
INSERT INTO public.schedd_worker_kinds VALUES (1, 'flaky', 1);
INSERT INTO public.schedd_worker_kinds VALUES (1, 'quick', 1);
INSERT INTO public.schedd_worker_kinds VALUES (1, 'slow', 1);
INSERT INTO public.schedd_workers VALUES (1, '0262715a8123d330', 'host', 18659, '0.1.0', 0, '["*"]', '{"high":[2,20],"medium":[8,100],"low":[4,50],"processes":2}', 1795700455294382, 1795700455694536, 1795700485694536, NULL, -454);
SELECT pg_catalog.setval('public.schedd_audit_id_seq', 1, true);
SELECT pg_catalog.setval('public.schedd_tasks_id_seq', 8, true);
SELECT pg_catalog.setval('public.schedd_workers_id_seq', 1, true);
ALTER TABLE ONLY public.schedd_attempts
    ADD CONSTRAINT schedd_attempts_pkey PRIMARY KEY (task_id, claim);
ALTER TABLE ONLY public.schedd_audit
    ADD CONSTRAINT schedd_audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schedd_checkpoints
    ADD CONSTRAINT schedd_checkpoints_pkey PRIMARY KEY (task_id, name);
ALTER TABLE ONLY public.schedd_edges
    ADD CONSTRAINT schedd_edges_pkey PRIMARY KEY (parent, child);
ALTER TABLE ONLY public.schedd_events
    ADD CONSTRAINT schedd_events_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.schedd_kinds
    ADD CONSTRAINT schedd_kinds_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.schedd_outcomes
    ADD CONSTRAINT schedd_outcomes_pkey PRIMARY KEY (task_id);
ALTER TABLE ONLY public.schedd_schedules
    ADD CONSTRAINT schedd_schedules_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.schedd_starts
    ADD CONSTRAINT schedd_starts_pkey PRIMARY KEY (kind, until);
ALTER TABLE ONLY public.schedd_task_values
    ADD CONSTRAINT schedd_task_values_pkey PRIMARY KEY (task_id, name);
ALTER TABLE ONLY public.schedd_tasks
    ADD CONSTRAINT schedd_tasks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.schedd_version
    ADD CONSTRAINT schedd_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.schedd_waits
    ADD CONSTRAINT schedd_waits_pkey PRIMARY KEY (task_id, item, name);
ALTER TABLE ONLY public.schedd_worker_kinds
    ADD CONSTRAINT schedd_worker_kinds_pkey PRIMARY KEY (worker, kind);
ALTER TABLE ONLY public.schedd_workers
    ADD CONSTRAINT schedd_workers_incarnation_key UNIQUE (incarnation);
ALTER TABLE ONLY public.schedd_workers
    ADD CONSTRAINT schedd_workers_pkey PRIMARY KEY (id);
CREATE INDEX ix_schedd_audit_task_id ON public.schedd_audit USING btree (task_id);
CREATE INDEX ix_schedd_edges_broken_by_success ON public.schedd_edges USING btree (parent) WHERE (ok = ANY (ARRAY[0, 2, 4, 6, 8, 10, 12, 14]));
CREATE INDEX ix_schedd_edges_child ON public.schedd_edges USING btree (child);
CREATE INDEX ix_schedd_events_emitted_at ON public.schedd_events USING btree (emitted_at);
CREATE INDEX ix_schedd_outcomes_removed_at ON public.schedd_outcomes USING btree (removed_at);
CREATE INDEX ix_schedd_schedules_next_at ON public.schedd_schedules USING btree (next_at);
CREATE INDEX ix_schedd_tasks_check ON public.schedd_tasks USING btree (check_at) WHERE (check_at IS NOT NULL);
CREATE INDEX ix_schedd_tasks_correlation ON public.schedd_tasks USING btree (correlation) WHERE (correlation IS NOT NULL);
CREATE INDEX ix_schedd_tasks_done ON public.schedd_tasks USING btree (state, finished_at) WHERE (state >= 7);
CREATE INDEX ix_schedd_tasks_held ON public.schedd_tasks USING btree (worker, lane) WHERE ((state >= 4) AND (state <= 5));
CREATE INDEX ix_schedd_tasks_key ON public.schedd_tasks USING btree (key) WHERE (key IS NOT NULL);
CREATE INDEX ix_schedd_tasks_ready ON public.schedd_tasks USING btree (queue, pool, lane, run_at, id, state) WHERE ((state >= 1) AND (state <= 3));
CREATE INDEX ix_schedd_tasks_spawned_by ON public.schedd_tasks USING btree (spawned_by) WHERE (spawned_by IS NOT NULL);
CREATE INDEX ix_schedd_tasks_subject ON public.schedd_tasks USING btree (subject) WHERE (subject IS NOT NULL);
CREATE INDEX ix_schedd_tasks_succeeded ON public.schedd_tasks USING btree (kept_until, finished_at) WHERE (state = 6);
CREATE INDEX ix_schedd_tasks_waiting ON public.schedd_tasks USING btree (id) WHERE (state = 0);
CREATE INDEX ix_schedd_waits_event ON public.schedd_waits USING btree (event) WHERE (event IS NOT NULL);
CREATE INDEX ix_schedd_waits_item ON public.schedd_waits USING btree (item) WHERE (item > 0);
CREATE INDEX ix_schedd_waits_met ON public.schedd_waits USING btree (met) WHERE ((item = 0) AND (met > 0));
CREATE INDEX ix_schedd_waits_open ON public.schedd_waits USING btree (task_id, name) WHERE (met = 0);
CREATE UNIQUE INDEX ux_schedd_tasks_held_key ON public.schedd_tasks USING btree (kind, held_key) WHERE (held_key IS NOT NULL);
CREATE UNIQUE INDEX ux_schedd_tasks_slot ON public.schedd_tasks USING btree (schedule, slot) WHERE (schedule IS NOT NULL);
