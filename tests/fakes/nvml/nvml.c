/* A driver library whose GPUs are written in a file, for programs that ask NVML.
 *
 * Built as libnvidia-ml.so.1. The environment variable STARLING_FAKE_NVML names the file; it is
 * read anew whenever it changes. Lines are key=value, "[gpu]" begins a GPU:
 *
 *   driver_version=550.00-simulated   init_error=18   hang=1        (for the whole library)
 *   uuid= name= memory_total_mib= memory_used_mib= utilization_pct= power_w= power_limit_w=
 *   temperature_c= clock_mhz= fan_pct=                              (a missing one: not supported)
 *   process=PID:MIB (any number; "?" for unknown memory)   lost=1   hang=1
 *
 * A call that hangs goes on when the file no longer says so.
 */
#include <pthread.h>
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
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  GPU_IS_LOST = 15,
};
enum { MAX_GPUS = 16, MAX_PROCESSES = 32, UNKNOWN = -1 };

#define MIB (1024ULL * 1024ULL)
#define PUBLIC __attribute__((visibility("default")))

typedef struct {
  char uuid[96], name[96];
  double memory_total_mib, memory_used_mib, utilization_pct, power_w, power_limit_w;
  double temperature_c, clock_mhz, fan_pct;
  int lost, hang, processes;
  unsigned pid[MAX_PROCESSES];
  double process_mib[MAX_PROCESSES];
} Gpu;

typedef struct {
  char driver_version[80];
  int init_error, hang, gpus;
  Gpu gpu[MAX_GPUS];
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

static State state;
static int initialized;
static struct timespec read_at;
static off_t read_size;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void set_number(Gpu *gpu, const char *key, const char *value) {
  const struct {
    const char *key;
    double *place;
  } places[] = {
      {"memory_total_mib", &gpu->memory_total_mib}, {"memory_used_mib", &gpu->memory_used_mib},
      {"utilization_pct", &gpu->utilization_pct},   {"power_w", &gpu->power_w},
      {"power_limit_w", &gpu->power_limit_w},       {"temperature_c", &gpu->temperature_c},
      {"clock_mhz", &gpu->clock_mhz},               {"fan_pct", &gpu->fan_pct},
  };
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    if (strcmp(key, places[i].key) == 0) *places[i].place = atof(value);
}

static void set_gpu(Gpu *gpu, const char *key, const char *value) {
  if (strcmp(key, "uuid") == 0) {
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", value);
  } else if (strcmp(key, "name") == 0) {
    snprintf(gpu->name, sizeof gpu->name, "%s", value);
  } else if (strcmp(key, "lost") == 0) {
    gpu->lost = atoi(value);
  } else if (strcmp(key, "hang") == 0) {
    gpu->hang = atoi(value);
  } else if (strcmp(key, "process") == 0 && gpu->processes < MAX_PROCESSES) {
    const char *memory = strchr(value, ':');
    gpu->pid[gpu->processes] = (unsigned)atoi(value);
    gpu->process_mib[gpu->processes++] =
        memory == NULL || memory[1] == '?' ? UNKNOWN : atof(memory + 1);
  } else {
    set_number(gpu, key, value);
  }
}

static void read_lines(FILE *file, State *found) {
  char line[256];
  while (fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\r\n")] = '\0';
    if (strcmp(line, "[gpu]") == 0 && found->gpus < MAX_GPUS) {
      Gpu *gpu = &found->gpu[found->gpus++];
      gpu->memory_total_mib = gpu->memory_used_mib = gpu->utilization_pct = UNKNOWN;
      gpu->power_w = gpu->power_limit_w = gpu->temperature_c = UNKNOWN;
      gpu->clock_mhz = gpu->fan_pct = UNKNOWN;
      continue;
    }
    char *value = strchr(line, '=');
    if (value == NULL) continue;
    *value++ = '\0';
    if (found->gpus > 0) {
      set_gpu(&found->gpu[found->gpus - 1], line, value);
    } else if (strcmp(line, "driver_version") == 0) {
      snprintf(found->driver_version, sizeof found->driver_version, "%s", value);
    } else if (strcmp(line, "init_error") == 0) {
      found->init_error = atoi(value);
    } else if (strcmp(line, "hang") == 0) {
      found->hang = atoi(value);
    }
  }
}

/* Return what the file says now; without a file there is no driver. */
static State look(void) {
  pthread_mutex_lock(&lock);
  const char *path = getenv("STARLING_FAKE_NVML");
  struct stat found;
  if (path == NULL || stat(path, &found) != 0) {
    memset(&state, 0, sizeof state);
    state.init_error = DRIVER_NOT_LOADED;
  } else if (found.st_mtim.tv_sec != read_at.tv_sec || found.st_mtim.tv_nsec != read_at.tv_nsec ||
             found.st_size != read_size) {
    FILE *file = fopen(path, "r");
    if (file != NULL) {
      memset(&state, 0, sizeof state);
      snprintf(state.driver_version, sizeof state.driver_version, "550.00-simulated");
      read_lines(file, &state);
      fclose(file);
      read_at = found.st_mtim;
      read_size = found.st_size;
    }
  }
  State now = state;
  pthread_mutex_unlock(&lock);
  return now;
}

static State wait_for_library(void) {
  const struct timespec pause = {0, 20 * 1000 * 1000};
  State now = look();
  while (now.hang) {
    nanosleep(&pause, NULL);
    now = look();
  }
  return now;
}

/* Handles are one more than an index, so that none is NULL. */
static int find(void *device, Gpu *gpu) {
  const struct timespec pause = {0, 20 * 1000 * 1000};
  for (;;) {
    State now = wait_for_library();
    size_t index = (size_t)device - 1;
    if (!initialized) return UNINITIALIZED;
    if (now.init_error) return now.init_error;
    if (index >= (size_t)now.gpus) return INVALID_ARGUMENT;
    *gpu = now.gpu[index];
    if (gpu->lost) return GPU_IS_LOST;
    if (!gpu->hang) return SUCCESS;
    nanosleep(&pause, NULL);
  }
}

static int give(double value, double factor, unsigned *place) {
  if (value < 0) return NOT_SUPPORTED;
  *place = (unsigned)(value * factor);
  return SUCCESS;
}

static int number(void *device, size_t offset, double factor, unsigned *place) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  double value;
  memcpy(&value, (const char *)&gpu + offset, sizeof value);
  return give(value, factor, place);
}

static int text(const char *from, char *place, unsigned length) {
  if (strlen(from) >= length) return INSUFFICIENT_SIZE;
  strcpy(place, from);
  return SUCCESS;
}

PUBLIC int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  State now = wait_for_library();
  if (now.init_error) return now.init_error;
  initialized = 1;
  return SUCCESS;
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
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}

PUBLIC int nvmlSystemGetDriverVersion(char *place, unsigned length) {
  State now = wait_for_library();
  if (!initialized) return UNINITIALIZED;
  return text(now.driver_version, place, length);
}

PUBLIC int nvmlSystemGetNVMLVersion(char *place, unsigned length) {
  return text("13.0-simulated", place, length);
}

PUBLIC int nvmlDeviceGetCount_v2(unsigned *count) {
  State now = wait_for_library();
  if (!initialized) return UNINITIALIZED;
  if (now.init_error) return now.init_error;
  *count = (unsigned)now.gpus;
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  Gpu gpu;
  *device = (void *)((size_t)index + 1);
  return find(*device, &gpu);
}

PUBLIC int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  State now = wait_for_library();
  if (!initialized) return UNINITIALIZED;
  for (int i = 0; i < now.gpus; i++)
    if (strcmp(now.gpu[i].uuid, uuid) == 0)
      return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
  return 6; /* not found */
}

PUBLIC int nvmlDeviceGetIndex(void *device, unsigned *index) {
  Gpu gpu;
  *index = (unsigned)((size_t)device - 1);
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

PUBLIC int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  if (gpu.memory_total_mib < 0 || gpu.memory_used_mib < 0) return NOT_SUPPORTED;
  memory->total = (unsigned long long)gpu.memory_total_mib * MIB;
  memory->used = (unsigned long long)gpu.memory_used_mib * MIB;
  memory->free = memory->total - memory->used;
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *memory) {
  Memory first;
  int result = nvmlDeviceGetMemoryInfo(device, &first);
  if (result != SUCCESS) return result;
  memory->total = first.total;
  memory->reserved = 0;
  memory->free = first.free;
  memory->used = first.used;
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
  rates->memory = 0;
  return number(device, offsetof(Gpu, utilization_pct), 1, &rates->gpu);
}

PUBLIC int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
  return number(device, offsetof(Gpu, power_w), 1000, milliwatts);
}

PUBLIC int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
  return number(device, offsetof(Gpu, power_limit_w), 1000, milliwatts);
}

PUBLIC int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
  if (sensor != 0) return INVALID_ARGUMENT;
  return number(device, offsetof(Gpu, temperature_c), 1, celsius);
}

PUBLIC int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *megahertz) {
  (void)kind;
  return number(device, offsetof(Gpu, clock_mhz), 1, megahertz);
}

PUBLIC int nvmlDeviceGetFanSpeed(void *device, unsigned *percent) {
  return number(device, offsetof(Gpu, fan_pct), 1, percent);
}

PUBLIC int nvmlDeviceGetEncoderUtilization(void *device, unsigned *percent, unsigned *period_us) {
  Gpu gpu;
  *percent = *period_us = 0;
  return find(device, &gpu);
}

PUBLIC int nvmlDeviceGetDecoderUtilization(void *device, unsigned *percent, unsigned *period_us) {
  return nvmlDeviceGetEncoderUtilization(device, percent, period_us);
}

PUBLIC int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                                   ProcessInfo *found) {
  Gpu gpu;
  int result = find(device, &gpu);
  if (result != SUCCESS) return result;
  unsigned room = *count;
  *count = (unsigned)gpu.processes;
  if (gpu.processes == 0) return SUCCESS;
  if (found == NULL || room < *count) return INSUFFICIENT_SIZE;
  for (int i = 0; i < gpu.processes; i++) {
    double mib = gpu.process_mib[i];
    found[i].pid = gpu.pid[i];
    found[i].used = mib < 0 ? ~0ULL : (unsigned long long)mib * MIB;
    found[i].gpu_instance = found[i].compute_instance = ~0U;
  }
  return SUCCESS;
}

PUBLIC int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count,
                                                    ProcessInfo *found) {
  Gpu gpu;
  (void)found;
  *count = 0;
  return find(device, &gpu);
}
