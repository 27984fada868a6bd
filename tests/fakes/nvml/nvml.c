/* A driver library whose GPUs are written in a file, for programs that ask NVML.
 *
 * Built as libnvidia-ml.so.1. The environment variable STARLING_FAKE_NVML names the file; it is
 * read anew whenever it changes. Lines are key=value; "[gpu]" begins a GPU, "[slice]" a MIG slice of
 * the GPU above it. Before the first GPU, for the whole library:
 *
 *   driver_version=550.00-simulated   init_error=18   hang=1   generation=2 (older handles are void)
 *   memory_v2=0 (only the first version)   no_events=1   empty_is_success=1   call_error=999
 *
 * For a GPU or a slice; a number that is missing is not supported:
 *
 *   uuid= name= and the numbers of NUMBERS below
 *   error=FIELD:CODE        the call for that number fails so
 *   samples=A,B,C           utilisation of the last second, one sample each
 *   process=PID:MIB[:KIND[:SM]]   "?" for unknown memory; KIND C, G or M; SM in percent
 *   swapped=1               process entries as a driver of another version packs them
 *   lost=1 hang=1 crash=1   xid=NUMBER:CODE (numbers grow; each is told once)
 *   mig=1 mig_slots=7 mig_holes=1 (every second slot is empty, as after one was destroyed)
 *        nvlink=PEER:LINKS   ancestor=PEER:LEVEL
 *
 * A call that hangs goes on when the file no longer says so. Built with -DOLD_DRIVER it lacks what
 * drivers before R510 lack.
 */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NO_PERMISSION = 4,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  TIMEOUT = 10,
  FUNCTION_NOT_FOUND = 13,
  GPU_IS_LOST = 15,
};
enum { MAX_GPUS = 16, MAX_SLICES = 8, MAX_PROCESSES = 32, MAX_LIST = 16, UNKNOWN = -1 };

#define MIB (1024ULL * 1024ULL)
#define PUBLIC __attribute__((visibility("default")))

#define NUMBERS(X)                                                                               \
  X(memory_total_mib) X(memory_used_mib) X(memory_reserved_mib) X(utilization_pct)               \
  X(memory_utilization_pct) X(power_w) X(power_limit_w) X(temperature_c) X(slowdown_c)           \
  X(clock_mhz) X(clock_max_mhz) X(fan_pct) X(throttle) X(ecc_corrected) X(ecc_uncorrected)       \
  X(remap_corrected) X(remap_uncorrected) X(remap_pending) X(remap_failed)

enum {
#define X(name) NUMBER_##name,
  NUMBERS(X)
#undef X
  NUMBER_COUNT
};
static const char *const number_names[] = {
#define X(name) #name,
    NUMBERS(X)
#undef X
};

typedef struct {
  unsigned pid, sm;
  double mib;
  char kind;
} Process;

typedef struct {
  char uuid[96], name[96];
  double number[NUMBER_COUNT];
  int error[NUMBER_COUNT];
  int lost, hang, crash, swapped, mig, mig_slots, mig_holes;
  int processes, samples, xids, slices, is_slice;
  Process process[MAX_PROCESSES];
  double sample[MAX_LIST];
  struct {
    unsigned number, code;
  } xid[MAX_LIST];
  int nvlink[MAX_GPUS], ancestor[MAX_GPUS];
} Gpu;

typedef struct {
  char driver_version[80];
  int init_error, hang, generation, memory_v2, no_events, empty_is_success, call_error, gpus;
  Gpu gpu[MAX_GPUS];
  Gpu slice[MAX_GPUS][MAX_SLICES];
} State;

typedef struct {
  unsigned long long total, free, used;
} Memory;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} MemoryV2;
typedef struct {
  unsigned gpu, memory;
} Utilization;
typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} ProcessInfo;
typedef struct {
  unsigned pid;
  unsigned long long at;
  unsigned sm, memory, encoder, decoder;
} ProcessUtilization;
typedef struct {
  unsigned long long at;
  union {
    double real;
    unsigned whole;
    unsigned long long wide;
  } value;
} Sample;
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
} PciInfo;
typedef struct {
  void *device;
  unsigned long long type, value;
  unsigned gpu_instance, compute_instance;
} Event;

/* What clients pass is laid out by the driver's headers, and nothing here would notice otherwise. */
_Static_assert(sizeof(ProcessInfo) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(ProcessUtilization) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(Sample) == 16, "nvmlSample_t");
_Static_assert(sizeof(Memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(MemoryV2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");

static State state, draft;
static int initialized;
static struct timespec read_at;
static off_t read_size;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void clear(Gpu *gpu) {
  memset(gpu, 0, sizeof *gpu);
  for (int i = 0; i < NUMBER_COUNT; i++) gpu->number[i] = UNKNOWN;
  for (int i = 0; i < MAX_GPUS; i++) gpu->ancestor[i] = UNKNOWN;
}

static int number_named(const char *name, size_t length) {
  for (int i = 0; i < NUMBER_COUNT; i++)
    if (strlen(number_names[i]) == length && strncmp(number_names[i], name, length) == 0) return i;
  return UNKNOWN;
}

static void set_process(Gpu *gpu, const char *value) {
  if (gpu->processes == MAX_PROCESSES) return;
  char memory[32] = "?", kind = 'C';
  Process *process = &gpu->process[gpu->processes++];
  sscanf(value, "%u:%31[^:]:%c:%u", &process->pid, memory, &kind, &process->sm);
  process->mib = memory[0] == '?' ? UNKNOWN : atof(memory);
  process->kind = kind;
}

static void set_samples(Gpu *gpu, const char *value) {
  gpu->samples = 0;
  while (*value != '\0' && gpu->samples < MAX_LIST) {
    char *end;
    gpu->sample[gpu->samples++] = strtod(value, &end);
    if (*end != ',') return;
    value = end + 1;
  }
}

static void set_pair(Gpu *gpu, const char *key, const char *value) {
  unsigned first = 0, second = 0;
  sscanf(value, "%u:%u", &first, &second);
  if (strcmp(key, "xid") == 0 && gpu->xids < MAX_LIST) {
    gpu->xid[gpu->xids].number = first;
    gpu->xid[gpu->xids++].code = second;
  } else if (first < MAX_GPUS && strcmp(key, "nvlink") == 0) {
    gpu->nvlink[first] = (int)second;
  } else if (first < MAX_GPUS && strcmp(key, "ancestor") == 0) {
    gpu->ancestor[first] = (int)second;
  }
}

static void set_flag(Gpu *gpu, const char *key, int value) {
  const struct {
    const char *key;
    int *place;
  } places[] = {
      {"lost", &gpu->lost},       {"hang", &gpu->hang}, {"crash", &gpu->crash},
      {"swapped", &gpu->swapped}, {"mig", &gpu->mig},   {"mig_slots", &gpu->mig_slots},
      {"mig_holes", &gpu->mig_holes},
  };
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    if (strcmp(key, places[i].key) == 0) *places[i].place = value;
}

static void set_gpu(Gpu *gpu, const char *key, const char *value) {
  int number = number_named(key, strlen(key));
  const char *colon = strchr(value, ':');
  if (number != UNKNOWN) {
    gpu->number[number] = atof(value);
  } else if (strcmp(key, "uuid") == 0) {
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", value);
  } else if (strcmp(key, "name") == 0) {
    snprintf(gpu->name, sizeof gpu->name, "%s", value);
  } else if (strcmp(key, "error") == 0 && colon != NULL) {
    number = number_named(value, (size_t)(colon - value));
    if (number != UNKNOWN) gpu->error[number] = atoi(colon + 1);
  } else if (strcmp(key, "process") == 0) {
    set_process(gpu, value);
  } else if (strcmp(key, "samples") == 0) {
    set_samples(gpu, value);
  } else {
    set_pair(gpu, key, value);
    set_flag(gpu, key, atoi(value));
  }
}

static void set_library(State *found, const char *key, const char *value) {
  const struct {
    const char *key;
    int *place;
  } places[] = {
      {"init_error", &found->init_error}, {"hang", &found->hang},
      {"generation", &found->generation}, {"memory_v2", &found->memory_v2},
      {"no_events", &found->no_events},   {"empty_is_success", &found->empty_is_success},
      {"call_error", &found->call_error},
  };
  if (strcmp(key, "driver_version") == 0)
    snprintf(found->driver_version, sizeof found->driver_version, "%s", value);
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    if (strcmp(key, places[i].key) == 0) *places[i].place = atoi(value);
}

static void read_lines(FILE *file, State *found) {
  char line[256];
  Gpu *here = NULL;
  while (fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\r\n")] = '\0';
    if (strcmp(line, "[gpu]") == 0 && found->gpus < MAX_GPUS) {
      clear(here = &found->gpu[found->gpus++]);
      continue;
    }
    if (strcmp(line, "[slice]") == 0 && found->gpus > 0) {
      Gpu *parent = &found->gpu[found->gpus - 1];
      if (parent->slices == MAX_SLICES) continue;
      clear(here = &found->slice[found->gpus - 1][parent->slices++]);
      here->is_slice = 1;
      continue;
    }
    char *value = strchr(line, '=');
    if (value == NULL || line[0] == '#') continue;
    *value++ = '\0';
    if (here != NULL)
      set_gpu(here, line, value);
    else
      set_library(found, line, value);
  }
}

/* Bring the state up to date; without a file there is no driver. The lock is held. */
static void look(void) {
  const char *path = getenv("STARLING_FAKE_NVML");
  struct stat found;
  if (path == NULL || stat(path, &found) != 0) {
    memset(&state, 0, sizeof state);
    state.init_error = DRIVER_NOT_LOADED;
  } else if (found.st_mtim.tv_sec != read_at.tv_sec || found.st_mtim.tv_nsec != read_at.tv_nsec ||
             found.st_size != read_size) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    memset(&draft, 0, sizeof draft);
    snprintf(draft.driver_version, sizeof draft.driver_version, "550.00-simulated");
    draft.memory_v2 = 1;
    read_lines(file, &draft);
    fclose(file);
    state = draft;
    read_at = found.st_mtim;
    read_size = found.st_size;
  }
}

static void pause_a_little(void) {
  const struct timespec pause = {0, 20 * 1000 * 1000};
  nanosleep(&pause, NULL);
}

/* Take the lock once the library as a whole answers. */
static void enter(void) {
  for (;;) {
    pthread_mutex_lock(&lock);
    look();
    if (!state.hang) return;
    pthread_mutex_unlock(&lock);
    pause_a_little();
  }
}

static int leave(int result) {
  pthread_mutex_unlock(&lock);
  return result;
}

static int trouble(void) {
  if (!initialized) return UNINITIALIZED;
  return state.init_error ? state.init_error : state.call_error;
}

/* A handle holds what it stands for: generation, slice (from 1), GPU (from 1). */
static void *handle_of(int gpu, int slice) {
  return (void *)(((size_t)state.generation << 16) | ((size_t)slice << 8) | (size_t)(gpu + 1));
}

static int gpu_of(const void *device) { return (int)((size_t)device & 0xff) - 1; }
static int slice_of(const void *device) { return (int)(((size_t)device >> 8) & 0xff); }

static int find(void *device, Gpu *found) {
  for (;;) {
    enter();
    int result = trouble(), index = gpu_of(device), slice = slice_of(device);
    if (result != SUCCESS) return leave(result);
    if (((size_t)device >> 16) != (size_t)state.generation || index < 0 || index >= state.gpus)
      return leave(INVALID_ARGUMENT);
    const Gpu *gpu = &state.gpu[index];
    if (slice > gpu->slices) return leave(INVALID_ARGUMENT);
    int hang = gpu->hang, lost = gpu->lost, crash = gpu->crash;
    *found = slice > 0 ? state.slice[index][slice - 1] : *gpu;
    pthread_mutex_unlock(&lock);
    if (crash) raise(SIGSEGV);
    if (lost) return GPU_IS_LOST;
    if (!hang) return SUCCESS;
    pause_a_little();
  }
}

static int say(const Gpu *gpu, int which, double factor, unsigned *place) {
  if (gpu->error[which]) return gpu->error[which];
  if (gpu->number[which] < 0) return NOT_SUPPORTED;
  *place = (unsigned)(gpu->number[which] * factor);
  return SUCCESS;
}

static int number(void *device, int which, double factor, unsigned *place) {
  Gpu gpu;
  int result = find(device, &gpu);
  return result != SUCCESS ? result : say(&gpu, which, factor, place);
}

static int text(const char *from, char *place, unsigned length) {
  if (strlen(from) >= length) return INSUFFICIENT_SIZE;
  strcpy(place, from);
  return SUCCESS;
}

static unsigned long long now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_nsec / 1000ULL;
}

PUBLIC int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  enter();
  if (state.init_error) return leave(state.init_error);
  initialized = 1;
  return leave(SUCCESS);
}

PUBLIC int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

PUBLIC int nvmlShutdown(void) {
  initialized = 0;
  return SUCCESS;
}

PUBLIC const char *nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}

PUBLIC int nvmlSystemGetDriverVersion(char *place, unsigned length) {
  enter();
  if (!initialized) return leave(UNINITIALIZED);
  return leave(text(state.driver_version, place, length));
}

PUBLIC int nvmlSystemGetNVMLVersion(char *place, unsigned length) {
  return text("13.0-simulated", place, length);
}

PUBLIC int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 12040;
  return SUCCESS;
}

PUBLIC int nvmlSystemGetCudaDriverVersion(int *version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

PUBLIC int nvmlDeviceGetCount_v2(unsigned *count) {
  enter();
  int result = trouble();
  if (result == SUCCESS) *count = (unsigned)state.gpus;
  return leave(result);
}

PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  Gpu gpu;
  enter();
  *device = handle_of((int)index, 0);
  leave(SUCCESS);
  return find(*device, &gpu);
}

PUBLIC int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  enter();
  int result = trouble(), found = 0;
  for (int i = 0; i < state.gpus && result == SUCCESS; i++) {
    if (strcmp(state.gpu[i].uuid, uuid) == 0) *device = handle_of(i, 0), found = 1;
    for (int k = 0; k < state.gpu[i].slices; k++)
      if (strcmp(state.slice[i][k].uuid, uuid) == 0) *device = handle_of(i, k + 1), found = 1;
  }
  leave(result);
  Gpu gpu;
  if (result != SUCCESS) return result;
  return found ? find(*device, &gpu) : NOT_FOUND;
}

static void write_pci(int index, PciInfo *pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = (unsigned)(index + 1);
  snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
  snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", pci->bus);
}

PUBLIC int nvmlDeviceGetPciInfo_v3(void *device, PciInfo *pci) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result == SUCCESS) write_pci(gpu_of(device), pci);
  return result;
}

PUBLIC int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
  enter();
  int result = trouble(), found = UNKNOWN;
  PciInfo pci;
  for (int i = 0; i < state.gpus; i++) {
    write_pci(i, &pci);
    if (strcmp(pci.id, id) == 0) found = i;
  }
  if (found != UNKNOWN) *device = handle_of(found, 0);
  leave(result);
  Gpu gpu;
  if (result != SUCCESS) return result;
  return found == UNKNOWN ? NOT_FOUND : find(*device, &gpu);
}

PUBLIC int nvmlDeviceGetIndex(void *device, unsigned *index) {
  Gpu gpu;
  *index = (unsigned)(slice_of(device) > 0 ? slice_of(device) - 1 : gpu_of(device));
  return find(device, &gpu);
}

PUBLIC int nvmlDeviceGetMinorNumber(void *device, unsigned *index) {
  Gpu gpu;
  *index = (unsigned)gpu_of(device);
  return find(device, &gpu);
}

PUBLIC int nvmlDeviceGetName(void *device, char *place, unsigned length) {
  Gpu gpu;
  int result = find(device, &gpu);
  return result != SUCCESS ? result : text(gpu.name, place, length);
}

PUBLIC int nvmlDeviceGetUUID(void *device, char *place, unsigned length) {
  Gpu gpu;
  int result = find(device, &gpu);
  return result != SUCCESS ? result : text(gpu.uuid, place, length);
}

static int memory_of(void *device, MemoryV2 *memory) {
  Gpu gpu;
  unsigned total, used, reserved = 0;
  int result = find(device, &gpu);
  if (result == SUCCESS) result = say(&gpu, NUMBER_memory_total_mib, 1, &total);
  if (result == SUCCESS) result = say(&gpu, NUMBER_memory_used_mib, 1, &used);
  if (result != SUCCESS) return result;
  say(&gpu, NUMBER_memory_reserved_mib, 1, &reserved);
  memory->total = total * MIB;
  memory->used = used * MIB;
  memory->reserved = reserved * MIB;
  memory->free = memory->total - memory->used - memory->reserved;
  return SUCCESS;
}

/* The first version counts what the driver keeps for itself as used. */
PUBLIC int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  MemoryV2 found;
  int result = memory_of(device, &found);
  if (result != SUCCESS) return result;
  memory->total = found.total;
  memory->used = found.used + found.reserved;
  memory->free = found.free;
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  if (gpu.is_slice || gpu.mig) return NOT_SUPPORTED;
  rates->memory = 0;
  say(&gpu, NUMBER_memory_utilization_pct, 1, &rates->memory);
  return say(&gpu, NUMBER_utilization_pct, 1, &rates->gpu);
}

PUBLIC int nvmlDeviceGetSamples(void *device, int kind, unsigned long long since, int *type,
                                unsigned *count, Sample *samples) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  if (kind != 1 || gpu.samples == 0 || gpu.mig || gpu.is_slice) return NOT_SUPPORTED;
  *type = 1;
  /* Taken at fixed moments, whoever asks when. */
  const unsigned long long step = 1000000ULL / (unsigned)gpu.samples, last = now_us() / step;
  unsigned found = 0;
  for (unsigned long long slot = last - (unsigned)gpu.samples + 1; slot <= last; slot++) {
    if (slot * step <= since) continue;
    if (samples != NULL && found < *count) {
      samples[found].at = slot * step;
      samples[found].value.whole = (unsigned)gpu.sample[slot % (unsigned)gpu.samples];
    }
    found++;
  }
  if (found == 0) return NOT_FOUND;
  if (samples == NULL || found < *count) *count = found;
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
  return number(device, NUMBER_power_w, 1000, milliwatts);
}

PUBLIC int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
  return number(device, NUMBER_power_limit_w, 1000, milliwatts);
}

PUBLIC int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *milliwatts) {
  return number(device, NUMBER_power_limit_w, 1000, milliwatts);
}

PUBLIC int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
  if (sensor != 0) return INVALID_ARGUMENT;
  return number(device, NUMBER_temperature_c, 1, celsius);
}

PUBLIC int nvmlDeviceGetTemperatureThreshold(void *device, int kind, unsigned *celsius) {
  if (kind > 1) return NOT_SUPPORTED;
  return number(device, NUMBER_slowdown_c, 1, celsius);
}

PUBLIC int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *megahertz) {
  (void)kind;
  return number(device, NUMBER_clock_mhz, 1, megahertz);
}

PUBLIC int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *megahertz) {
  (void)kind;
  return number(device, NUMBER_clock_max_mhz, 1, megahertz);
}

PUBLIC int nvmlDeviceGetFanSpeed(void *device, unsigned *percent) {
  return number(device, NUMBER_fan_pct, 1, percent);
}

static int wide(void *device, int which, unsigned long long *place) {
  unsigned value;
  int result = number(device, which, 1, &value);
  if (result == SUCCESS) *place = value;
  return result;
}

PUBLIC int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter,
                                       unsigned long long *count) {
  (void)counter;
  return wide(device, kind == 1 ? NUMBER_ecc_uncorrected : NUMBER_ecc_corrected, count);
}

PUBLIC int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected,
                                     unsigned *pending, unsigned *failed) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  if (say(&gpu, NUMBER_remap_pending, 1, pending) != SUCCESS) return NOT_SUPPORTED;
  *corrected = *uncorrected = *failed = 0;
  say(&gpu, NUMBER_remap_corrected, 1, corrected);
  say(&gpu, NUMBER_remap_uncorrected, 1, uncorrected);
  say(&gpu, NUMBER_remap_failed, 1, failed);
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetEncoderUtilization(void *device, unsigned *percent, unsigned *period_us) {
  Gpu gpu;
  *percent = *period_us = 0;
  return find(device, &gpu);
}

PUBLIC int nvmlDeviceGetDecoderUtilization(void *device, unsigned *percent, unsigned *period_us) {
  return nvmlDeviceGetEncoderUtilization(device, percent, period_us);
}

PUBLIC int nvmlDeviceGetPerformanceState(void *device, unsigned *level) {
  Gpu gpu;
  *level = 0;
  return find(device, &gpu);
}

PUBLIC int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) {
  Gpu gpu;
  *mode = 1;
  return find(device, &gpu);
}

PUBLIC int nvmlDeviceGetDisplayActive(void *device, unsigned *mode) {
  Gpu gpu;
  *mode = 0;
  return find(device, &gpu);
}

PUBLIC int nvmlDeviceGetComputeMode(void *device, unsigned *mode) {
  return nvmlDeviceGetDisplayActive(device, mode);
}

PUBLIC int nvmlDeviceGetBAR1MemoryInfo(void *device, Memory *memory) {
  Gpu gpu;
  memory->total = memory->free = 256 * MIB;
  memory->used = 0;
  return find(device, &gpu);
}

PUBLIC int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  if (gpu.mig_slots == 0 || gpu.is_slice) return NOT_SUPPORTED;
  *current = *pending = (unsigned)gpu.mig;
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
  Gpu gpu;
  int result = find(device, &gpu);
  *count = (unsigned)gpu.mig_slots;
  return result;
}

PUBLIC int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  const unsigned place = gpu.mig_holes ? index / 2 : index;
  if (!gpu.mig || (gpu.mig_holes && index % 2 != 0) || place >= (unsigned)gpu.slices)
    return NOT_FOUND;
  enter();
  *slice = handle_of(gpu_of(device), (int)place + 1);
  return leave(SUCCESS);
}

/* Known on one operating system only. */
PUBLIC int nvmlDeviceGetDriverModel(void *device, unsigned *current, unsigned *pending) {
  (void)device, (void)current, (void)pending;
  return NOT_SUPPORTED;
}

PUBLIC int nvmlDeviceGetDriverModel_v2(void *device, unsigned *current, unsigned *pending) {
  return nvmlDeviceGetDriverModel(device, current, pending);
}

PUBLIC int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is_slice) {
  *is_slice = slice_of(device) > 0;
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **parent) {
  *parent = (void *)((size_t)device & ~(size_t)0xff00);
  return slice_of(device) > 0 ? SUCCESS : INVALID_ARGUMENT;
}

PUBLIC int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
  *id = (unsigned)slice_of(device);
  return slice_of(device) > 0 ? SUCCESS : NOT_SUPPORTED;
}

PUBLIC int nvmlDeviceGetComputeInstanceId(void *device, unsigned *id) {
  *id = 0;
  return slice_of(device) > 0 ? SUCCESS : NOT_SUPPORTED;
}

static int processes(void *device, char kind, unsigned *count, ProcessInfo *found) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  unsigned room = *count, there = 0;
  for (int i = 0; i < gpu.processes; i++) {
    const Process *process = &gpu.process[i];
    if (process->kind != kind) continue;
    if (found != NULL && there < room) {
      ProcessInfo *place = &found[there];
      place->pid = process->pid;
      place->used = process->mib < 0 ? ~0ULL : (unsigned long long)process->mib * MIB;
      place->gpu_instance = gpu.is_slice ? (unsigned)slice_of(device) : ~0U;
      place->compute_instance = gpu.is_slice ? 0 : ~0U;
      if (gpu.swapped) {
        place->used = ((unsigned long long)process->pid << 32) | place->gpu_instance;
        place->pid = (unsigned)process->mib * 256U + 1U;
      }
    }
    there++;
  }
  *count = there;
  if (there == 0) return SUCCESS;
  return found == NULL || room < there ? INSUFFICIENT_SIZE : SUCCESS;
}

#ifdef OLD_DRIVER
#define VERSIONED(name) name##_v2
#else
#define VERSIONED(name) name##_v3

PUBLIC int nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *memory) {
  enter();
  int known = state.memory_v2;
  leave(SUCCESS);
  return known ? memory_of(device, memory) : FUNCTION_NOT_FOUND;
}

PUBLIC int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
  return wide(device, NUMBER_throttle, reasons);
}
#endif

PUBLIC int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
  return wide(device, NUMBER_throttle, reasons);
}

PUBLIC int VERSIONED(nvmlDeviceGetComputeRunningProcesses)(void *device, unsigned *count,
                                                           ProcessInfo *found) {
  return processes(device, 'C', count, found);
}

PUBLIC int VERSIONED(nvmlDeviceGetGraphicsRunningProcesses)(void *device, unsigned *count,
                                                            ProcessInfo *found) {
  return processes(device, 'G', count, found);
}

PUBLIC int VERSIONED(nvmlDeviceGetMPSComputeRunningProcesses)(void *device, unsigned *count,
                                                              ProcessInfo *found) {
  return processes(device, 'M', count, found);
}

PUBLIC int nvmlDeviceGetProcessUtilization(void *device, ProcessUtilization *found, unsigned *count,
                                           unsigned long long since) {
  Gpu gpu;
  int result = find(device, &gpu), empty_is_success;
  if (result != SUCCESS) return result;
  enter();
  empty_is_success = state.empty_is_success;
  leave(SUCCESS);
  if (gpu.is_slice || gpu.mig) return NOT_SUPPORTED;
  const unsigned long long at = now_us();
  unsigned room = *count;
  if (since >= at || gpu.processes == 0) {
    *count = 0;
    return empty_is_success ? SUCCESS : NOT_FOUND;
  }
  *count = (unsigned)gpu.processes;
  if (found == NULL || room < *count) return INSUFFICIENT_SIZE;
  for (int i = 0; i < gpu.processes; i++) {
    memset(&found[i], 0, sizeof found[i]);
    found[i].pid = gpu.process[i].pid;
    found[i].at = at;
    /* Without a beginning, a driver claims the whole past. */
    found[i].sm = since == 0 ? 100 : gpu.process[i].sm;
  }
  return SUCCESS;
}

static unsigned told[MAX_GPUS];
static int registered[MAX_GPUS];

PUBLIC int nvmlEventSetCreate(void **set) {
  memset(registered, 0, sizeof registered);
  *set = told;
  return SUCCESS;
}

PUBLIC int nvmlEventSetFree(void *set) {
  (void)set;
  return SUCCESS;
}

PUBLIC int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
  Gpu gpu;
  (void)types, (void)set;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  enter();
  if (state.no_events) return leave(NO_PERMISSION);
  registered[gpu_of(device)] = 1;
  /* What was before nobody is told. */
  for (int i = 0; i < gpu.xids; i++) told[gpu_of(device)] = gpu.xid[i].number;
  return leave(SUCCESS);
}

PUBLIC int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
  (void)set, (void)timeout_ms;
  enter();
  int result = trouble();
  if (result != SUCCESS) return leave(result);
  for (int i = 0; i < state.gpus; i++) {
    const Gpu *gpu = &state.gpu[i];
    for (int k = 0; k < gpu->xids && registered[i]; k++) {
      if (gpu->xid[k].number <= told[i]) continue;
      told[i] = gpu->xid[k].number;
      memset(event, 0, sizeof *event);
      event->device = handle_of(i, 0);
      event->type = 0x8;
      event->value = gpu->xid[k].code;
      return leave(SUCCESS);
    }
  }
  return leave(TIMEOUT);
}

PUBLIC int nvmlDeviceGetTopologyCommonAncestor(void *first, void *second, int *level) {
  Gpu gpu;
  int result = find(first, &gpu);
  if (result != SUCCESS) return result;
  *level = gpu.ancestor[gpu_of(second)];
  return *level < 0 ? NOT_SUPPORTED : SUCCESS;
}

/* Links are numbered peer by peer. */
static int peer_of(const Gpu *gpu, unsigned link) {
  for (int peer = 0; peer < MAX_GPUS; peer++) {
    if (link < (unsigned)gpu->nvlink[peer]) return peer;
    link -= (unsigned)gpu->nvlink[peer];
  }
  return UNKNOWN;
}

PUBLIC int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  int any = 0;
  for (int i = 0; i < MAX_GPUS; i++) any |= gpu.nvlink[i];
  if (!any) return NOT_SUPPORTED;
  *active = peer_of(&gpu, link) != UNKNOWN;
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, PciInfo *pci) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  int peer = peer_of(&gpu, link);
  if (peer == UNKNOWN) return NOT_SUPPORTED;
  write_pci(peer, pci);
  return SUCCESS;
}
